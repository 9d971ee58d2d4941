/* SPDX-License-Identifier: MIT */
/* The module: its state and its types. */

#include "cm/cm.h"
#include "memory/registered.h"
#include "memory/wanted.h"
#include "messages/messages.h"

static int add_derived(PyObject *module, PyType_Spec *spec, PyTypeObject *base, PyTypeObject **slot)
{
    *slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    return *slot == NULL ? -1 : PyModule_AddType(module, *slot);
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **slot)
{
    return add_derived(module, spec, NULL, slot);
}

/* Runs once in each interpreter that imports the module. If it fails, module_clear() releases what
 * it created. */
CQN_RARE static int module_exec(PyObject *module)
{
    cqn_state *st = PyModule_GetState(module);
    st->awaiting = &cqn_engine_awaiting;
    pthread_mutex_init(&st->idle_lock, NULL);
    pthread_cond_init(&st->idle, NULL);
    if (CQN_ADD_FAULT_METHODS(module) < 0 || PyModule_AddFunctions(module, cqn_wire_methods) < 0 ||
        cqn_lock_init() < 0 || cqn_state_watch_for_fork(st) < 0 ||
        cqn_errors_init(module, st) < 0) {
        return -1;
    }
    if (add_type(module, &cqn_context_spec, &st->Context) < 0 ||
        add_type(module, &cqn_pd_spec, &st->PD) < 0 ||
        add_type(module, &cqn_mr_spec, &st->MR) < 0 ||
        add_type(module, &cqn_sge_spec, &st->SGE) < 0 ||
        add_type(module, &cqn_channel_spec, &st->CompletionChannel) < 0 ||
        add_type(module, &cqn_cq_spec, &st->CQ) < 0 ||
        add_type(module, &cqn_srq_spec, &st->SRQ) < 0 ||
        add_type(module, &cqn_qp_spec, &st->QP) < 0 ||
        add_type(module, &cqn_ah_spec, &st->AH) < 0 ||
        add_type(module, &cqn_mw_spec, &st->MW) < 0 ||
        add_type(module, &cqn_xrcd_spec, &st->XRCD) < 0 ||
        add_type(module, &cqn_flow_spec, &st->Flow) < 0 ||
        add_type(module, &cqn_flow_counters_spec, &st->FlowCounters) < 0 ||
        add_type(module, &cqn_wq_spec, &st->WQ) < 0 ||
        add_type(module, &cqn_rwq_ind_table_spec, &st->RwqIndTable) < 0 ||
        add_type(module, &cqn_dm_spec, &st->DM) < 0 ||
        add_type(module, &cqn_td_spec, &st->TD) < 0 ||
        add_derived(module, &cqn_parent_domain_spec, st->PD, &st->ParentDomain) < 0 ||
        add_type(module, &cqn_send_wr_spec, &st->SendWR) < 0 ||
        add_type(module, &cqn_recv_wr_spec, &st->RecvWR) < 0 ||
        add_type(module, &cqn_wc_spec, &st->WorkCompletion) < 0 ||
        add_type(module, &cqn_wc_array_spec, &st->WCArray) < 0 || cqn_wc_array_init(st) < 0 ||
        add_type(module, &cqn_async_event_spec, &st->AsyncEvent) < 0 ||
        add_type(module, &cqn_failure_watch_spec, &st->FailureWatch) < 0 ||
        add_type(module, &cqn_wakeup_spec, &st->Wakeup) < 0 ||
        add_type(module, &cqn_engine_spec, &st->Engine) < 0 ||
        add_type(module, &cqn_awaitable_spec, &st->Awaitable) < 0 ||
        add_type(module, &cqn_scope_spec, &st->Scope) < 0 ||
        add_type(module, &cqn_selector_spec, &st->Selector) < 0 ||
        add_type(module, &cqn_cm_channel_spec, &st->CMChannel) < 0 ||
        add_type(module, &cqn_cm_id_spec, &st->CMID) < 0 ||
        add_type(module, &cqn_cm_conn_spec, &st->CMConn) < 0 ||
        add_type(module, &cqn_cm_wait_spec, &st->CMWait) < 0 ||
        add_type(module, &cqn_cm_call_spec, &st->CMCall) < 0 ||
        add_type(module, &cqn_message_flow_spec, &st->MessageFlow) < 0 ||
        add_type(module, &cqn_message_ring_spec, &st->MessageRing) < 0 ||
        add_type(module, &cqn_receive_spec, &st->MessageReceive) < 0 ||
        add_type(module, &cqn_sending_spec, &st->MessageSend) < 0 ||
        add_type(module, &cqn_reading_spec, &st->MessageReading) < 0 ||
        add_type(module, &cqn_wanted_spec, &st->WantedMemory) < 0 ||
        add_type(module, &cqn_region_spec, &st->RegisteredRegion) < 0 ||
        add_type(module, &cqn_registered_spec, &st->RegisteredTable) < 0 ||
        add_type(module, &cqn_exposure_spec, &st->Exposure) < 0 ||
        add_type(module, &cqn_exposure_table_spec, &st->ExposureTable) < 0 ||
        add_type(module, &cqn_session_spec, &st->MessageSession) < 0) {
        return -1;
    }
    st->innermost_scope = PyContextVar_New("innermost_scope", NULL);
    if (st->innermost_scope == NULL ||
        PyModule_AddObjectRef(module, "innermost_scope", st->innermost_scope) < 0) {
        return -1;
    }
    st->CQStats = PyStructSequence_NewType(&cqn_cq_stats_desc);
    if (st->CQStats == NULL || PyModule_AddType(module, st->CQStats) < 0) {
        return -1;
    }
    PyObject *constants = cqn_constants();
    if (constants == NULL || PyModule_AddObjectRef(module, "constants", constants) < 0) {
        Py_XDECREF(constants);
        return -1;
    }
    Py_DECREF(constants);
    return 0;
}

#define VISIT_OBJECTS(st, DO)                   \
    DO((st)->VerbsError);                       \
    DO((st)->BusyError);                        \
    DO((st)->DeviceRemovedError);               \
    DO((st)->ClosedError);                      \
    DO((st)->CompletionError);                  \
    DO((st)->AsyncEventError);                  \
    DO((st)->Context);                          \
    DO((st)->PD);                               \
    DO((st)->MR);                               \
    DO((st)->SGE);                              \
    DO((st)->CompletionChannel);                \
    DO((st)->CQ);                               \
    DO((st)->SRQ);                              \
    DO((st)->QP);                               \
    DO((st)->AH);                               \
    DO((st)->MW);                               \
    DO((st)->XRCD);                             \
    DO((st)->Flow);                             \
    DO((st)->FlowCounters);                     \
    DO((st)->WQ);                               \
    DO((st)->RwqIndTable);                      \
    DO((st)->DM);                               \
    DO((st)->TD);                               \
    DO((st)->ParentDomain);                     \
    DO((st)->SendWR);                           \
    DO((st)->RecvWR);                           \
    DO((st)->WorkCompletion);                   \
    DO((st)->WCArray);                          \
    DO((st)->AsyncEvent);                       \
    DO((st)->FailureWatch);                     \
    DO((st)->Wakeup);                           \
    DO((st)->Engine);                           \
    DO((st)->Awaitable);                        \
    DO((st)->Scope);                            \
    DO((st)->Selector);                         \
    DO((st)->CMChannel);                        \
    DO((st)->CMID);                             \
    DO((st)->CMConn);                           \
    DO((st)->CMWait);                           \
    DO((st)->CMCall);                           \
    DO((st)->MessageFlow);                      \
    DO((st)->MessageRing);                      \
    DO((st)->MessageReceive);                   \
    DO((st)->MessageSend);                      \
    DO((st)->MessageReading);                   \
    DO((st)->WantedMemory);                     \
    DO((st)->RegisteredRegion);                 \
    DO((st)->RegisteredTable);                  \
    DO((st)->Exposure);                         \
    DO((st)->ExposureTable);                    \
    DO((st)->MessageSession);                   \
    DO((st)->ProtocolError);                    \
    DO((st)->innermost_scope);                  \
    DO((st)->get_running_loop);                 \
    DO((st)->anyio_name);                       \
    DO((st)->anyio);                            \
    DO((st)->CQStats);                          \
    for (int i = 0; i < CQN_WC_STATUSES; i++) { \
        DO((st)->wc_status[i]);                 \
    }                                           \
    for (int i = 0; i < CQN_WC_OPCODES; i++) {  \
        DO((st)->wc_opcode[i]);                 \
    }                                           \
    for (int i = 0; i < CQN_EVENT_TYPES; i++) { \
        DO((st)->event_type[i]);                \
    }                                           \
    DO((st)->wc_flags);                         \
    DO((st)->wc_ex_flags);                      \
    DO((st)->access_flags);                     \
    DO((st)->byte_len)

CQN_RARE static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    cqn_state *st = PyModule_GetState(module);
    VISIT_OBJECTS(st, Py_VISIT);
    return 0;
}

CQN_RARE static int module_clear(PyObject *module)
{
    cqn_state *st = PyModule_GetState(module);
    cqn_freelist_clear(&st->free_awaitables);
    cqn_freelist_clear(&st->free_wakeups);
    VISIT_OBJECTS(st, Py_CLEAR);
    return 0;
}

static void module_free(void *module)
{
    cqn_state *st = PyModule_GetState(module);
    module_clear(module);
    cqn_wc_clear_freelist(st);
    cqn_state_free(st);
}

static PyMethodDef module_methods[] = {
    {"list_devices", cqn_list_devices, METH_NOARGS,
     "list_devices($module, /)\n--\n\n"
     "The RDMA devices of this machine, a dict each; an empty list where there is none.\n\n"
     "Wraps ibv_get_device_list(3)."},
    {"why_no_device", cqn_why_no_device, METH_NOARGS,
     "why_no_device($module, /)\n--\n\n"
     "Say what this machine lacks if list_devices() is empty, and how to get it."},
    {"fork_status", cqn_fork_status, METH_NOARGS,
     "fork_status($module, /)\n--\n\n"
     "ForkStatus.\n\nWraps ibv_is_fork_initialized(3)."},
    {"open_contexts", cqn_open_contexts, METH_NOARGS,
     "open_contexts($module, /)\n--\n\n"
     "The contexts that are open in this process, the newest first."},
    {"open_objects", cqn_open_objects, METH_O,
     "open_objects($module, context, /)\n--\n\n"
     "What is open below a Context: those of each type in the order in which they were made."},
    {"known_async_events", cqn_known_async_events, METH_O,
     "known_async_events($module, context, /)\n--\n\n"
     "The failures of a Context, and the events that were read and not handed out; takes none."},
    {NULL, NULL, 0, NULL},
};

/* All state is in cqn_state, one per interpreter, and libibverbs is thread-safe. Each interpreter
 * may therefore have its own GIL, or none, see lock.h. */
static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef cqn_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = cqn_module_name,
    .m_doc = "The C core of cqnotify. Import its names from cqnotify.",
    .m_size = sizeof(cqn_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&cqn_module);
}
