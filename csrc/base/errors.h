/* SPDX-License-Identifier: MIT */
/* From the errno of a verb to an exception, and what is done with exceptions. */
#ifndef CQN_ERRORS_H
#define CQN_ERRORS_H

#include "base/state.h"

int cqn_errors_init(PyObject *module, cqn_state *st);
int cqn_errno_of(int result);
void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...);
void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...);
PyObject *cqn_take_exception(void);
void cqn_put_exception(PyObject *exc);
void cqn_blame_item(Py_ssize_t i);
void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message);
int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw,
                         const char *operation);

#endif
