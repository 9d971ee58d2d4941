/* SPDX-License-Identifier: MIT */
/* From the errno of a verb to an exception, and the handling of exceptions. */
#ifndef CQN_ERRORS_H
#define CQN_ERRORS_H

#include "base/state.h"

/* Makes the exception types and adds them to the module. */
int cqn_errors_init(PyObject *module, cqn_state *st);

/* The errno in what a verb returned, in whichever of three ways its provider returns it. */
int cqn_errno_of(int result);

/* Raises VerbsError, or DeviceRemovedError for EIO, with the verb's name, the text of the errno,
 * and what was asked for in printf's style. Returns NULL, so that a caller can return it. */
void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...);

/* The same of a post: how many requests were posted, and which one was refused (borrowed, or
 * NULL). */
void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...);

/* Takes the exception that is set out of the thread: a new reference, or NULL. */
PyObject *cqn_take_exception(void);

/* Sets an exception again; steals the reference. NULL: none is set. */
void cqn_put_exception(PyObject *exc);

/* Puts the index of a list's element before the message of the ValueError that is set. */
void cqn_blame_item(Py_ssize_t i);

/* Raises BusyError; steals the message, and does nothing if that is NULL. Returns NULL. */
void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message);

/* Raises CompletionError for a WorkCompletion that has failed. `operation` is the name of the
 * method that posted it, or NULL. Returns -1. */
int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw,
                         const char *operation);

/* Handles the exception of a callback, which has no caller of its own: reports it, or keeps the
 * first that is not an Exception in `*interrupt`, for cqn_raise_interrupt(). */
void cqn_callback_failed(PyObject *callback, PyObject **interrupt);

/* Raises what was kept; steals it. Returns -1. */
int cqn_raise_interrupt(PyObject *interrupt);

#endif
