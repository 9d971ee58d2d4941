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
    uint64_t max;     /* for setting */
    int mask;         /* bit that goes with it in a modify */
    const char *kind; /* of an enum: see cqn_member() */
} cqn_field;

/* A port as rdma-core has described it from 50 on; an older library leaves the rest 0. */
typedef union {
    struct ibv_port_attr attr;
    struct {
        char before[52];
        uint32_t active_speed_ex;
    } later;
} cqn_port_attr;

/* A new dict, or tuple, of the fields of a struct, in the table's order. */
PyObject *cqn_struct_to_dict(const void *from, const cqn_field *fields);
PyObject *cqn_struct_to_tuple(const void *from, const cqn_field *fields);

/* A new tuple of n new references, which it takes over in any case. NULL if one of them is NULL,
 * with the exception that made it so, or with MemoryError. */
PyObject *cqn_tuple_of(PyObject *const *items, size_t n);

/* A copy of a dict that the user gave, which no other thread changes while it is read. TypeError
 * names the argument, and the `kind` of dict that it should be. */
PyObject *cqn_dict_copy(PyObject *mapping, const char *name, const char *kind);

/* The field of that name, or NULL. */
const cqn_field *cqn_field_of(const cqn_field *fields, PyObject *name);

/* Stores a value in the field of the struct at `to`. -1 with an exception. */
int cqn_field_from(PyObject *value, void *to, const cqn_field *field);

/* An address as the dict that users know, and from it. `ports` is how many the device has. */
PyObject *cqn_ah_attr_to_dict(const struct ibv_ah_attr *attr);
int cqn_ah_attr_from(PyObject *mapping, const char *name, int ports, struct ibv_ah_attr *out);
extern const cqn_field cqn_device_fields[], cqn_device_ex_fields[], cqn_port_fields[];
extern const cqn_field cqn_qp_fields[], cqn_cap_fields[], cqn_srq_fields[];

#endif
