/* SPDX-License-Identifier: MIT */
/* Devices that report fewer features than they have, or more. */
#ifndef CQN_FEATURES_H
#define CQN_FEATURES_H

#include "base/python.h"

/* Methods of the module with which tests set the features of devices. */
PyObject *cqn_hide_features(PyObject *module, PyObject *args);
PyObject *cqn_use_fake_device(PyObject *module, PyObject *use);

/* Replacements of calls. */
int cqn_query_device(struct ibv_context *device, struct ibv_device_attr *attr);
int cqn_query_device_ex(struct ibv_context *device, const struct ibv_query_device_ex_input *input,
                        struct ibv_device_attr_ex *attr);
struct ibv_mr *cqn_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access);
struct ibv_context *cqn_open_device(struct ibv_device *device);
struct ibv_context *cqn_import_device(int fd);

#endif
