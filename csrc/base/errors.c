/* SPDX-License-Identifier: MIT */
/*
 * The exception types, and the conversion of a verb's errno to an exception.
 *
 * Each message names the verb that failed, the text of the errno, what was requested and, where
 * known, what to do about it.
 */

#include "base/errors.h"
#include "base/library.h"
#include "base/lock.h"

/* The docs begin with the signature, as those of the other types, for inspect.signature().
 * `__doc__` is set to the rest, because Python separates the two only for types created from a
 * spec. */
#define SIGNATURE "(*args)\n--\n\n"

static PyObject *new_exception(PyObject *module, const char *name, const char *doc, PyObject *base,
                               PyObject *dict)
{
    PyObject *type = PyErr_NewExceptionWithDoc(name, doc, base, dict);
    PyObject *rest = PyUnicode_FromString(strstr(doc, SIGNATURE) + strlen(SIGNATURE));
    if (type != NULL && (rest == NULL || PyObject_SetAttrString(type, "__doc__", rest) < 0 ||
                         PyModule_AddType(module, (PyTypeObject *)type) < 0)) {
        Py_CLEAR(type);
    }
    Py_XDECREF(rest);
    return type;
}

/* DeviceRemovedError and BusyError derive from VerbsError; ClosedError derives from ValueError,
 * like the error of a closed file. */
int cqn_errors_init(PyObject *module, cqn_state *st)
{
    PyObject *dict = Py_BuildValue("{s:s,s:i,s:O}", "verb", "", "posted", 0, "bad_wr", Py_None);
    if (dict == NULL) {
        return -1;
    }
    st->VerbsError = new_exception(
        module, "cqnotify.VerbsError",
        "VerbsError" SIGNATURE
        "A verb failed. `errno` is its error, `verb` its name; the text says what to do. If a list "
        "of work requests was posted, the device accepted the first `posted` of them, and refused "
        "`bad_wr`, a SendWR or RecvWR.",
        PyExc_OSError, dict);
    Py_DECREF(dict);
    if (st->VerbsError == NULL) {
        return -1;
    }
    st->BusyError = new_exception(
        module, "cqnotify.BusyError",
        "BusyError" SIGNATURE
        "The object can't be closed yet: other objects, which the text names, still need it.",
        st->VerbsError, NULL);
    st->DeviceRemovedError =
        new_exception(module, "cqnotify.DeviceRemovedError",
                      "DeviceRemovedError" SIGNATURE
                      "The device has gone. Nothing will complete any more; close what is open.",
                      st->VerbsError, NULL);
    st->ClosedError =
        new_exception(module, "cqnotify.ClosedError",
                      "ClosedError" SIGNATURE
                      "The object was closed, or it was opened before a fork, by the parent.",
                      PyExc_ValueError, NULL);
    st->CompletionError = new_exception(module, "cqnotify.CompletionError",
                                        "CompletionError" SIGNATURE
                                        "A work request failed: `status`, `wr_id`, `qp_num`, "
                                        "`vendor_err`, and `wc`, its completion.",
                                        PyExc_Exception, NULL);
    st->AsyncEventError = new_exception(
        module, "cqnotify.AsyncEventError",
        "AsyncEventError" SIGNATURE
        "The device reports a failure after which awaited completions may never come: `event` is "
        "the AsyncEvent.",
        PyExc_Exception, NULL);
    return st->BusyError && st->DeviceRemovedError && st->ClosedError && st->CompletionError &&
                   st->AsyncEventError
               ? 0
               : -1;
}

/* Returns type(err, message) with the verb's name as an attribute: a new reference, or NULL with an
 * exception. */
static PyObject *new_error(PyObject *type, int err, const char *verb, PyObject *message)
{
    PyObject *exc = PyObject_CallFunction(type, "iO", err, message);
    PyObject *name = PyUnicode_FromString(verb);
    if (exc != NULL && (name == NULL || PyObject_SetAttrString(exc, "verb", name) < 0)) {
        Py_CLEAR(exc);
    }
    Py_XDECREF(name);
    return exc;
}

/* Verbs return their errno, except that some providers, such as libsiw, return it negated, or
 * return -1 and set errno. */
int cqn_errno_of(int result)
{
    return result >= 0 ? result : result == -1 && errno != 0 ? errno : -result;
}

/* The kernel and the providers use both EOPNOTSUPP and ENOSYS for an unsupported operation. 0 means
 * that a provider failed to create an object without setting errno. */
static const char *text_of_errno(int err)
{
    switch (err) {
    case 0:
        return "the device's provider failed and did not say why";
    case EOPNOTSUPP:
    case ENOSYS:
        return "not supported by this device";
    case EMFILE:
        return "Too many open files (this process has reached its limit, ulimit -n)";
    case ENFILE:
        return "Too many open files in system (its limit is sysctl fs.file-max)";
    case EAGAIN: /* also the kernel's error at the limit of a cgroup */
        return "Resource temporarily unavailable (perhaps by rdma.max of an rdma cgroup)";
    default:
        return strerror(err);
    }
}

/* Raises the exception and steals the reference; NULL: an exception is already set. */
static void raise_error(PyObject *exc)
{
    if (exc != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        Py_DECREF(exc);
    }
}

#define KERNELS_ENOTSUPP 524 /* internal to the kernel: user space has no name for it */

/* Returns the exception "verb: text of err: details", a new reference; NULL with an exception. */
CQN_RARE static PyObject *new_verbs_error(cqn_state *st, int err, const char *verb,
                                          const char *format, va_list args)
{
    PyObject *detail = PyUnicode_FromFormatV(format, args);
    if (detail == NULL) {
        return NULL;
    }
    err = err < 0 ? -err : err;
    err = err == KERNELS_ENOTSUPP ? EOPNOTSUPP : err;
    char lack[CQN_WHY];
    const char *text = err == ENOSYS && cqn_library_lacks(verb, lack) ? lack : text_of_errno(err);
    PyObject *message = PyUnicode_FromFormat("%s: %s%s%U", verb, text,
                                             PyUnicode_GET_LENGTH(detail) ? ": " : "", detail);
    Py_DECREF(detail);
    if (message == NULL) {
        return NULL;
    }
    /* The kernel fails every verb with EIO after the device was removed. */
    PyObject *exc = new_error(err == EIO ? st->DeviceRemovedError : st->VerbsError,
                              err ? err : ENOMEM, verb, message);
    Py_DECREF(message);
    return exc;
}

void *cqn_verbs_error(cqn_state *st, int err, const char *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    raise_error(new_verbs_error(st, err, verb, format, args));
    va_end(args);
    return NULL;
}

void *cqn_post_error(cqn_state *st, int err, const char *verb, size_t posted, PyObject *bad_wr,
                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyObject *exc = new_verbs_error(st, err, verb, format, args);
    va_end(args);
    PyObject *count = PyLong_FromSize_t(posted);
    if (exc != NULL && (count == NULL || PyObject_SetAttrString(exc, "posted", count) < 0 ||
                        PyObject_SetAttrString(exc, "bad_wr", bad_wr ? bad_wr : Py_None) < 0)) {
        Py_CLEAR(exc);
    }
    Py_XDECREF(count);
    raise_error(exc);
    return NULL;
}

void *cqn_busy_error(cqn_state *st, const char *verb, PyObject *message)
{
    if (message != NULL) {
        raise_error(new_error(st->BusyError, EBUSY, verb, message));
        Py_DECREF(message);
    }
    return NULL;
}

PyObject *cqn_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type != NULL) {
        PyErr_NormalizeException(&type, &value, &traceback);
        if (traceback != NULL) {
            PyException_SetTraceback(value, traceback);
        }
    }
    Py_XDECREF(traceback);
    Py_XDECREF(type);
    return value;
#endif
}

void cqn_put_exception(PyObject *exc)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(exc == NULL ? NULL : Py_NewRef((PyObject *)Py_TYPE(exc)), exc,
                  exc == NULL ? NULL : PyException_GetTraceback(exc));
#endif
}

/* Other exceptions are not about this item only, and are left alone. */
void cqn_blame_item(Py_ssize_t i)
{
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) {
        return;
    }
    PyObject *exc = cqn_take_exception();
    PyErr_Format((PyObject *)Py_TYPE(exc), "[%zd] of the list: %S", i, exc);
    Py_DECREF(exc);
}

/* The status of a flushed work request does not show the cause. */
#define WHY_FLUSHED                                                                         \
    ": the QP had moved to ERR, because an earlier request failed, or because its rdma_cm " \
    "connection ended (conn.error says how)"

/* REM_INV_REQ_ERR has several causes. */
#define WHY_INVALID                                                                             \
    ": the peer's receive was too small for the message, its max_dest_rd_atomic for a read or " \
    "atomic, its QP was connected without this access, or the path MTU of its QP is another one"

/* Returns, for example, "RETRY_EXC_ERR, transport retry counter exceeded (vendor_err 0x81)". */
static PyObject *describe_status(PyObject *wc, const struct ibv_wc *raw)
{
    const char *const why = raw->status == IBV_WC_WR_FLUSH_ERR      ? WHY_FLUSHED
                            : raw->status == IBV_WC_REM_INV_REQ_ERR ? WHY_INVALID
                                                                    : "";
    PyObject *status = PyObject_GetAttrString(wc, "status");
    PyObject *name = status == NULL              ? NULL
                     : PyLong_CheckExact(status) ? PyUnicode_FromFormat("status %S", status)
                                                 : PyObject_GetAttrString(status, "name");
    PyObject *text = name == NULL ? NULL
                                  : PyUnicode_FromFormat("%S, %s (vendor_err 0x%x)%s", name,
                                                         ibv_wc_status_str(raw->status),
                                                         (unsigned)raw->vendor_err, why);
    Py_XDECREF(name);
    Py_XDECREF(status);
    return text;
}

/* Returns, for example, "SEND (wr_id 5)". A failed completion does not carry the operation, so
 * `operation` is NULL unless the caller posted the work request. Generated wr_ids, from 2**63 on,
 * are omitted: they mean nothing to the user. */
static PyObject *describe_request(const char *operation, uint64_t wr_id)
{
    const bool chosen_by_user = wr_id >> 63 == 0;
    const unsigned long long id = wr_id;
    if (operation == NULL) {
        return chosen_by_user ? PyUnicode_FromFormat("work request %llu", id)
                              : PyUnicode_FromString("a work request");
    }
    return chosen_by_user ? PyUnicode_FromFormat("%s (wr_id %llu)", operation, id)
                          : PyUnicode_FromString(operation);
}

static PyObject *completion_message(PyObject *wc, const struct ibv_wc *raw, const char *operation)
{
    PyObject *request = describe_request(operation, raw->wr_id);
    PyObject *status = request ? describe_status(wc, raw) : NULL;
    PyObject *message = status == NULL ? NULL
                                       : PyUnicode_FromFormat("%U on QP %u failed: %U", request,
                                                              (unsigned)raw->qp_num, status);
    Py_XDECREF(request);
    Py_XDECREF(status);
    return message;
}

CQN_RARE static PyObject *new_completion_error(cqn_state *st, PyObject *wc,
                                               const struct ibv_wc *raw, const char *operation)
{
    PyObject *message = completion_message(wc, raw, operation);
    PyObject *exc = message ? PyObject_CallOneArg(st->CompletionError, message) : NULL;
    Py_XDECREF(message);
    if (exc == NULL) {
        return NULL;
    }
    static const char *const names[] = {"status", "wr_id", "qp_num", "vendor_err"};
    int rc = PyObject_SetAttrString(exc, "wc", wc);
    for (size_t i = 0; rc == 0 && i < Py_ARRAY_LENGTH(names); i++) {
        PyObject *value = PyObject_GetAttrString(wc, names[i]);
        rc = value == NULL ? -1 : PyObject_SetAttrString(exc, names[i], value);
        Py_XDECREF(value);
    }
    if (rc < 0) {
        Py_CLEAR(exc);
    }
    return exc;
}

int cqn_completion_error(cqn_state *st, PyObject *wc, const struct ibv_wc *raw,
                         const char *operation)
{
    raise_error(new_completion_error(st, wc, raw, operation));
    return -1;
}

/* An Exception of a callback is reported, since a callback has no caller. Other exceptions, such as
 * KeyboardInterrupt, are meant for the program: the first one is kept, and raised at the end. */
void cqn_callback_failed(PyObject *callback, PyObject **interrupt)
{
    if (*interrupt == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        *interrupt = cqn_take_exception();
    }
    else {
        CQN_UNLOCKED(PyErr_WriteUnraisable(callback));
    }
}

/* An exception that is already set becomes the context of the interrupt. */
int cqn_raise_interrupt(PyObject *interrupt)
{
    PyObject *set = cqn_take_exception(), *context = PyException_GetContext(interrupt);
    if (set != NULL && context == NULL) {
        PyException_SetContext(interrupt, set);
    }
    else {
        Py_XDECREF(set);
    }
    Py_XDECREF(context);
    cqn_put_exception(interrupt);
    return -1;
}
