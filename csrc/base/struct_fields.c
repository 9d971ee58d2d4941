/* SPDX-License-Identifier: MIT */
/* The attribute structs of the verbs as dicts or tuples, by tables of their fields. */

#include "base/args.h"
#include "base/struct_fields.h"
#include <endian.h>

/* The tables are more readable in rows. */
/* clang-format off */
#define OF_KIND(st, f, type, max, mask, kind) \
    {#f, offsetof(st, f), sizeof(((st *)0)->f), type, max, mask, kind}
#define FIELD(st, f, type, max, mask) OF_KIND(st, f, type, max, mask, NULL)
#define U(st, f) FIELD(st, f, CQN_UINT, UINT64_MAX, 0)
#define END {NULL, 0, 0, CQN_UINT, 0, 0, NULL}

#define D(f) U(struct ibv_device_attr, f)
const cqn_field cqn_device_fields[] = {
    FIELD(struct ibv_device_attr, fw_ver, CQN_TEXT, 0, 0),
    FIELD(struct ibv_device_attr, node_guid, CQN_BE64, 0, 0),
    FIELD(struct ibv_device_attr, sys_image_guid, CQN_BE64, 0, 0),
    D(max_mr_size), D(page_size_cap), D(vendor_id), D(vendor_part_id), D(hw_ver), D(max_qp),
    D(max_qp_wr), D(device_cap_flags), D(max_sge), D(max_sge_rd), D(max_cq), D(max_cqe),
    D(max_mr), D(max_pd), D(max_qp_rd_atom), D(max_ee_rd_atom), D(max_res_rd_atom),
    D(max_qp_init_rd_atom), D(max_ee_init_rd_atom), D(atomic_cap), D(max_ee), D(max_rdd),
    D(max_mw), D(max_raw_ipv6_qp), D(max_raw_ethy_qp), D(max_mcast_grp),
    D(max_mcast_qp_attach), D(max_total_mcast_qp_attach), D(max_ah), D(max_fmr),
    D(max_map_per_fmr), D(max_srq), D(max_srq_wr), D(max_srq_sge), D(max_pkeys),
    D(local_ca_ack_delay), D(phys_port_cnt), END};

/* The fields beside orig_attr. The dots are part of the names. */
#define E(f) U(struct ibv_device_attr_ex, f)
const cqn_field cqn_device_ex_fields[] = {
    E(comp_mask), E(odp_caps.general_caps), E(odp_caps.per_transport_caps.rc_odp_caps),
    E(odp_caps.per_transport_caps.uc_odp_caps), E(odp_caps.per_transport_caps.ud_odp_caps),
    E(completion_timestamp_mask), E(hca_core_clock), E(device_cap_flags_ex),
    E(tso_caps.max_tso), E(tso_caps.supported_qpts), E(rss_caps.supported_qpts),
    E(rss_caps.max_rwq_indirection_tables), E(rss_caps.max_rwq_indirection_table_size),
    E(rss_caps.rx_hash_fields_mask), E(rss_caps.rx_hash_function), E(max_wq_type_rq),
    E(raw_packet_caps), E(tm_caps.max_rndv_hdr_size), E(tm_caps.max_num_tags), E(tm_caps.flags),
    E(tm_caps.max_ops), E(tm_caps.max_sge),
    E(packet_pacing_caps.qp_rate_limit_min), E(packet_pacing_caps.qp_rate_limit_max),
    E(packet_pacing_caps.supported_qpts), E(cq_mod_caps.max_cq_count),
    E(cq_mod_caps.max_cq_period), E(phys_port_cnt_ex), E(max_dm_size),
    E(xrc_odp_caps), END};

#define P(f) U(struct ibv_port_attr, f)
const cqn_field cqn_port_fields[] = {
    P(state), P(max_mtu), P(active_mtu), P(gid_tbl_len), P(port_cap_flags), P(max_msg_sz),
    P(bad_pkey_cntr), P(qkey_viol_cntr), P(pkey_tbl_len), P(lid), P(sm_lid), P(lmc),
    P(max_vl_num), P(sm_sl), P(subnet_timeout), P(init_type_reply), P(active_width),
    P(active_speed), P(phys_state), P(link_layer), P(flags), P(port_cap_flags2),
    {"active_speed_ex", offsetof(cqn_port_attr, later.active_speed_ex), 4, CQN_UINT, UINT64_MAX, 0,
     NULL}, END};

#define C(f) FIELD(struct ibv_qp_cap, f, CQN_UINT, UINT32_MAX, 0)
const cqn_field cqn_cap_fields[] = {C(max_send_wr), C(max_recv_wr), C(max_send_sge),
                                    C(max_recv_sge), C(max_inline_data), END};

/* The limits are those of the fields' bits. An enum's limit also refuses nonexistent states and
 * MTUs; the kernel refuses invalid combinations. */
#define Q(f, max, mask) FIELD(struct ibv_qp_attr, f, CQN_UINT, max, mask)
#define QE(f, max, mask, kind) OF_KIND(struct ibv_qp_attr, f, CQN_UINT, max, mask, kind)
const cqn_field cqn_qp_fields[] = {
    QE(qp_state, IBV_QPS_ERR, IBV_QP_STATE, "a QPState such as QPState.RTS"),
    QE(cur_qp_state, IBV_QPS_ERR, IBV_QP_CUR_STATE, "a QPState such as QPState.RTS"),
    QE(path_mtu, IBV_MTU_4096, IBV_QP_PATH_MTU, "an MTU such as MTU.MTU_1024"),
    QE(path_mig_state, IBV_MIG_ARMED, IBV_QP_PATH_MIG_STATE, "a MigState such as MigState.ARMED"),
    Q(qkey, UINT32_MAX, IBV_QP_QKEY),
    Q(rq_psn, 0xffffff, IBV_QP_RQ_PSN),
    Q(sq_psn, 0xffffff, IBV_QP_SQ_PSN),
    Q(dest_qp_num, 0xffffff, IBV_QP_DEST_QPN),
    QE(qp_access_flags, UINT32_MAX, IBV_QP_ACCESS_FLAGS,
       "AccessFlags such as AccessFlags.REMOTE_WRITE"),
    Q(pkey_index, UINT16_MAX, IBV_QP_PKEY_INDEX),
    Q(alt_pkey_index, UINT16_MAX, IBV_QP_ALT_PATH),
    Q(en_sqd_async_notify, 1, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    Q(sq_draining, 1, 0),
    Q(max_rd_atomic, UINT8_MAX, IBV_QP_MAX_QP_RD_ATOMIC),
    Q(max_dest_rd_atomic, UINT8_MAX, IBV_QP_MAX_DEST_RD_ATOMIC),
    Q(min_rnr_timer, 31, IBV_QP_MIN_RNR_TIMER),
    Q(port_num, UINT8_MAX, IBV_QP_PORT),
    Q(timeout, 31, IBV_QP_TIMEOUT),
    Q(retry_cnt, 7, IBV_QP_RETRY_CNT),
    Q(rnr_retry, 7, IBV_QP_RNR_RETRY),
    Q(alt_port_num, UINT8_MAX, IBV_QP_ALT_PATH),
    Q(alt_timeout, 31, IBV_QP_ALT_PATH),
    Q(rate_limit, UINT32_MAX, IBV_QP_RATE_LIMIT),
    END};

#define S(f) U(struct ibv_srq_attr, f)
const cqn_field cqn_srq_fields[] = {S(max_wr), S(max_sge), S(srq_limit), END};

#define A(f, max) FIELD(struct ibv_ah_attr, f, CQN_UINT, max, 0)
#define GRH(f, type, max)                                                                  \
    {#f, offsetof(struct ibv_ah_attr, grh.f), sizeof(((struct ibv_ah_attr *)0)->grh.f), type, \
     max, 0, NULL}
static const cqn_field ah_fields[] = {
    GRH(dgid, CQN_GID, 0),
    GRH(flow_label, CQN_UINT, 0xfffff),
    GRH(sgid_index, CQN_UINT, UINT8_MAX),
    GRH(hop_limit, CQN_UINT, UINT8_MAX),
    GRH(traffic_class, CQN_UINT, UINT8_MAX),
    A(dlid, UINT16_MAX), A(sl, 15), A(src_path_bits, 127), A(static_rate, UINT8_MAX),
    A(is_global, 1), A(port_num, UINT8_MAX), END};
/* clang-format on */

static uint64_t load(const void *at, size_t size)
{
    uint64_t n = 0;
#if __BYTE_ORDER == __LITTLE_ENDIAN
    memcpy(&n, at, size);
#else
    memcpy((char *)&n + sizeof(n) - size, at, size);
#endif
    return n;
}

static void store_uint(void *at, size_t size, uint64_t n)
{
#if __BYTE_ORDER == __LITTLE_ENDIAN
    memcpy(at, &n, size);
#else
    memcpy(at, (char *)&n + sizeof(n) - size, size);
#endif
}

/* Fields are in host byte order, except GUIDs and GIDs, which are in network byte order. */
static PyObject *field_value(const void *at, const cqn_field *field)
{
    switch (field->type) {
    case CQN_TEXT:
        return PyUnicode_DecodeUTF8(at, (Py_ssize_t)strnlen(at, field->size), "replace");
    case CQN_GID:
        return PyBytes_FromStringAndSize(at, (Py_ssize_t)field->size);
    case CQN_BE64:
        return PyLong_FromUnsignedLongLong(be64toh(load(at, field->size)));
    default:
        return PyLong_FromUnsignedLongLong(load(at, field->size));
    }
}

PyObject *cqn_struct_to_dict(const void *from, const cqn_field *fields)
{
    PyObject *dict = PyDict_New();
    for (; dict != NULL && fields->name != NULL; fields++) {
        PyObject *value = field_value((const char *)from + fields->offset, fields);
        if (value == NULL || PyDict_SetItemString(dict, fields->name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

/* For structs that are queried often: building a dict takes longer than the kernel's answer. */
PyObject *cqn_struct_to_tuple(const void *from, const cqn_field *fields)
{
    Py_ssize_t n = 0;
    while (fields[n].name != NULL) {
        n++;
    }
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *value = field_value((const char *)from + fields[i].offset, &fields[i]);
        if (value == NULL) {
            Py_CLEAR(tuple);
        }
        else {
            PyTuple_SET_ITEM(tuple, i, value);
        }
    }
    return tuple;
}

PyObject *cqn_tuple_of(PyObject *const *items, size_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    bool ok = tuple != NULL;
    for (size_t i = 0; i < n; i++) {
        ok = ok && items[i] != NULL;
        if (tuple != NULL) {
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, items[i]);
        }
        else {
            Py_XDECREF(items[i]);
        }
    }
    if (!ok) {
        Py_CLEAR(tuple);
    }
    return tuple;
}

/* The first letter distinguishes most names, as in args.c. */
const cqn_field *cqn_field_of(const cqn_field *fields, PyObject *name)
{
    Py_ssize_t size;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    if (text == NULL || strlen(text) != (size_t)size) {
        PyErr_Clear(); /* not valid UTF-8: no field has this name */
        return NULL;
    }
    while (fields->name != NULL && (*text != *fields->name || strcmp(text, fields->name) != 0)) {
        fields++;
    }
    return fields->name != NULL ? fields : NULL;
}

int cqn_field_from(PyObject *value, void *to, const cqn_field *field)
{
    char *at = (char *)to + field->offset;
    if (field->type == CQN_GID) {
        return cqn_gid(value, field->name, (union ibv_gid *)at);
    }
    uint64_t n;
    if ((field->kind == NULL ? cqn_uint(value, field->name, field->max, &n)
                             : cqn_member(value, field->name, field->kind, field->max, &n)) < 0) {
        return -1;
    }
    store_uint(at, field->size, n);
    return 0;
}

PyObject *cqn_ah_attr_to_dict(const struct ibv_ah_attr *attr)
{
    return cqn_struct_to_dict(attr, ah_fields);
}

PyObject *cqn_dict_copy(PyObject *mapping, const char *name, const char *kind)
{
    if (!PyDict_Check(mapping)) {
        return PyErr_Format(PyExc_TypeError, "%s must be a dict or %s, not %s", name, kind,
                            Py_TYPE(mapping)->tp_name);
    }
    return PyDict_Copy(mapping);
}

static int ah_fields_from(PyObject *mapping, const char *name, struct ibv_ah_attr *out)
{
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    bool given_global = false;
    while (PyDict_Next(mapping, &pos, &key, &value)) {
        const cqn_field *field = cqn_field_of(ah_fields, key);
        if (field == NULL) {
            PyErr_Format(PyExc_TypeError, "%s has no field %R", name, key);
            return -1;
        }
        if (field->type == CQN_GID && value == Py_None) {
            continue;
        }
        if (cqn_field_from(value, out, field) < 0) {
            return -1;
        }
        given_global |= field->type == CQN_GID;
    }
    out->is_global |= given_global;
    return 0;
}

/* A destination GID sets is_global. Omitted fields are 0, except port_num (1) and hop_limit
 * (64). */
int cqn_ah_attr_from(PyObject *mapping, const char *name, int ports, struct ibv_ah_attr *out)
{
    *out = (struct ibv_ah_attr){.port_num = 1, .grh.hop_limit = 64};
    PyObject *copy = cqn_dict_copy(mapping, name, "an AHAttr");
    int rc = copy == NULL ? -1 : ah_fields_from(copy, name, out);
    Py_XDECREF(copy);
    if (rc < 0) {
        return -1;
    }
    if (out->port_num < 1 || out->port_num > ports) {
        PyErr_Format(PyExc_ValueError, "port_num is %d: this device has port 1 to %d",
                     out->port_num, ports);
        return -1;
    }
    return 0;
}
