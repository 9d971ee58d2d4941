/* SPDX-License-Identifier: MIT */
/* Methods in test builds only, with which tests select what fails. */

#include "faults/engine_invariants.h"
#include "faults/fake_device.h"
#include "faults/faults.h"
#include "faults/features.h"

static PyMethodDef fault_methods[] = {
    {"fail_call", cqn_fail_call, METH_VARARGS,
     "fail_call(n, errno=ENOMEM, hold=False, minus_1=False, name=''): the n-th call from now "
     "fails, or the n-th one of that name; 0: none. "
     "With hold it does not return before the next fail_call(), where that call releases the GIL; "
     "a "
     "post, which does not, is refused and carried out. With minus_1 a post returns -1."},
    {"fail_alloc", cqn_fail_alloc, METH_VARARGS,
     "fail_alloc(n): the n-th allocation of this thread from now fails; 0: none."},
    {"before_call", cqn_before_call, METH_VARARGS,
     "before_call(name, callback): once, before the next call of that name, which must be one that "
     "is made with the GIL; or at the next place of that name where the lock was let go of."},
    {"check_engine", cqn_check_engine, METH_O,
     "check_engine(acq): what does not hold of an AsyncCQ's lists and counters, or None."},
    {"inject_event", cqn_inject_event, METH_VARARGS,
     "inject_event(event_type, element): what is read next instead of the device's own "
     "asynchronous event; element is a CQ, a QP, an SRQ, the number of a port, or None. "
     "A type below 0: nothing."},
    {"hide_features", cqn_hide_features, METH_VARARGS,
     "hide_features(*names): what devices that are asked from now on say that they have not, of "
     "\"atomics\", \"SRQ\" and \"SRQ resize\"."},
    {"use_fake_device", cqn_use_fake_device, METH_O,
     "use_fake_device(use): whether devices that are asked from now on say that they have XRC, "
     "ATOMIC_WRITE and paging on demand, and those that are opened are the fake device."},
    {"fake_calls", cqn_fake_calls, METH_NOARGS,
     "fake_calls(): of what a faking device was asked for, since the last call, the verb, "
     "what it returned or was about, a pointer, and the bytes of its struct, or its arguments as "
     "text."},
    {"fake_complete", cqn_fake_complete, METH_VARARGS,
     "fake_complete(pd, cq, id, opcode, wc_flags=0, tag=0, priv=0): what the fake device knows by "
     "that id succeeds; without arguments, after the completion was polled: nothing is left of "
     "it."},
    {"rereg_returns", cqn_rereg_returns, METH_VARARGS,
     "rereg_returns(result, errno): what ibv_rereg_mr() returns on the fake device; 0: it "
     "works."},
    {"failed", cqn_failed, METH_NOARGS, "failed(): what failed since; None: nothing."},
    {"held", cqn_held, METH_NOARGS, "held(): the call that waits for fail_call(0); None: none."},
    {"pretend_fork", cqn_pretend_fork, METH_VARARGS,
     "pretend_fork(status, errno=0): what ibv_is_fork_initialized() says, -1 if the library has no "
     "such function, and what ibv_fork_init() brings; the next Context is the first. Returns how "
     "often ibv_fork_init() was called. -2: the library's own answers."},
    {"live_handles", cqn_live_handles, METH_NOARGS,
     "live_handles(): how many handles of the device there are."},
    {NULL, NULL, 0, NULL},
};

int cqn_add_fault_methods(PyObject *module)
{
    const int rc = PyModule_AddFunctions(module, fault_methods);
    return rc < 0 ? rc : PyModule_AddFunctions(module, cqn_schedule_methods);
}
