/* SPDX-License-Identifier: MIT */
/* Conversion of a verb's errno to an exception, and the handling of exceptions. */
#ifndef CQN_ERRORS_H
#define CQN_ERRORS_H

#include "base/state.h"

/* Creates the exception types and adds them to the module. Returns -1 with an exception. */
int cqn_errors_init(PyObject *module, cqn_state *st);

/* Returns the errno of a verb's result; providers return it in one of three ways. */
int cqn_errno_of(int result);

/* Raises VerbsError, or DeviceRemovedError for EIO, with the verb's name, the text of the errno,
 * and details in printf's style. Returns NULL, for the caller to return. */
void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...);

/* The same for a failed post, with the number of work requests posted and the one that was refused
 * (borrowed, or NULL). */
void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...);

/* Clears the current exception and returns it: a new reference, or NULL if none is set. */
PyObject *cqn_take_exception(void);

/* Sets an exception that cqn_take_exception() returned, and steals the reference; NULL clears
 * it. */
void cqn_put_exception(PyObject *exc);

/* Prefixes the message of the current ValueError with the index of a list's item. */
void cqn_blame_item(Py_ssize_t i);

/* Raises BusyError and steals the message; NULL: an exception is already set. Returns NULL. */
void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message);

/* Raises CompletionError for a failed WorkCompletion. `operation` is the name of the method that
 * posted the work request, or NULL. Returns -1. */
int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw,
                         const char *operation);

/* Handles the exception of a callback, which has no caller: reports it, or stores the first one
 * that is not an Exception in `*interrupt`, for cqn_raise_interrupt(). */
void cqn_callback_failed(PyObject *callback, PyObject **interrupt);

/* Raises the exception kept by cqn_callback_failed(), and steals the reference. Returns -1. */
int cqn_raise_interrupt(PyObject *interrupt);

#endif
