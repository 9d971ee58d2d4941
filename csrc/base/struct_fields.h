/* SPDX-License-Identifier: MIT */
/* Structs of the verbs as dicts or tuples of their fields. */
#ifndef CQN_STRUCT_FIELDS_H
#define CQN_STRUCT_FIELDS_H

#include "base/python.h"

typedef enum { CQN_UINT, CQN_BE64, CQN_TEXT, CQN_GID } cqn_field_type;
typedef struct {
    const char *name;
    size_t offset, size;
    cqn_field_type type;
    uint64_t max;     /* the limit when it is set */
    int mask;         /* the bit of attr_mask that ibv_modify_qp() needs for it */
    const char *kind; /* for an enum: see cqn_member() */
} cqn_field;

/* A port's attributes since rdma-core 50; an older library leaves the last field 0. */
typedef union {
    struct ibv_port_attr attr;
    struct {
        char before[52];
        uint32_t active_speed_ex;
    } later;
} cqn_port_attr;

/* Return a new dict, or tuple, of the fields of a struct, in the order of the table. */
PyObject *cqn_struct_to_dict(const void *from, const cqn_field *fields);
PyObject *cqn_struct_to_tuple(const void *from, const cqn_field *fields);

/* Returns a new tuple of n new references; steals them, even on failure. If one of them is NULL it
 * returns NULL, with the exception that is set, or with MemoryError. */
PyObject *cqn_tuple_of(PyObject *const *items, size_t n);

/* Returns a copy of the user's dict that no other thread changes; NULL with an exception. TypeError
 * names the argument and `kind`, the user's name for such a dict. */
PyObject *cqn_dict_copy(PyObject *mapping, const char *name, const char *kind);

/* Returns the field of that name, or NULL without an exception. */
const cqn_field *cqn_field_of(const cqn_field *fields, PyObject *name);

/* Converts a value and stores it in the field of the struct at `to`. Returns -1 with an
 * exception. */
int cqn_field_from(PyObject *value, void *to, const cqn_field *field);

/* Conversions between an address and the user's dict of its fields. `ports` is the number of ports
 * of the device. */
PyObject *cqn_ah_attr_to_dict(const struct ibv_ah_attr *attr);
int cqn_ah_attr_from(PyObject *mapping, const char *name, int ports, struct ibv_ah_attr *out);
extern const cqn_field cqn_device_fields[], cqn_device_ex_fields[], cqn_port_fields[];
extern const cqn_field cqn_qp_fields[], cqn_cap_fields[], cqn_srq_fields[];

#endif
