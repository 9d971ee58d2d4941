/* SPDX-License-Identifier: MIT */
/* PD: a protection domain, the owner of memory regions, windows, address handles and queues. */

#include "verbs/verbs.h"

static int dealloc_pd(void *handle)
{
    return ibv_dealloc_pd(handle);
}

static const cqn_kind pd_kind = {
    .name = "PD",
    .destroy_verb = "ibv_dealloc_pd",
    .rank = CQN_RANK_PD,
    .destroy = dealloc_pd,
    .clear = cqn_clear,
};

CQN_RARE PyObject *cqn_new_of_context(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                                      const cqn_kind *kind, const cqn_alloc *alloc)
{
    CQN_COPY copy = NULL;
    static const char *const names[] = {"context", NULL};
    PyObject *in[1] = {NULL};
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        cqn_sort_new(kind->name, names, 1, 1, args, kwargs, in) < 0 ||
        cqn_expect(in[0], st->Context, "context") < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(in[0]);
    cqn_object *self = cqn_new(type, kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *device = used->handle;
    void *handle;
    int err;
    CQN_CREATING(self, handle = alloc->call(device); err = errno);
    if (handle == NULL) {
        cqn_verbs_error(st, err, alloc->verb, "%s", alloc->what);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, handle);
    return (PyObject *)self;
}

static void *alloc_pd(struct ibv_context *context)
{
    return ibv_alloc_pd(context);
}

static PyObject *pd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static const cqn_alloc alloc = {alloc_pd, "ibv_alloc_pd", ""};
    return cqn_new_of_context(type, args, kwargs, &pd_kind, &alloc);
}

/* ---- a PD of another process ---- */

static int unimport_pd(void *handle)
{
    ibv_unimport_pd(handle);
    return 0;
}

/* The other process owns the domain; closing only releases the import. */
static const cqn_kind imported_kind = {
    .name = "PD",
    .destroy_verb = "ibv_unimport_pd",
    .rank = CQN_RANK_PD,
    .destroy = unimport_pd,
    .clear = cqn_clear,
};

CQN_RARE static PyObject *pd_from_handle(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"context", "handle", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *context, *number_value;
    uint32_t number;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO:from_handle", names, &context,
                                     &number_value) ||
        cqn_expect(context, st->Context, "context") < 0 ||
        cqn_u32(number_value, "handle", UINT32_MAX, &number) < 0 ||
        cqn_open(CQN_OBJ(context)) == NULL) {
        return NULL;
    }
    if (PyType_IsSubtype(type, st->ParentDomain)) {
        PyErr_SetString(PyExc_TypeError, "a ParentDomain is made of a PD: import that");
        return NULL;
    }
    cqn_object *used = CQN_OBJ(context);
    cqn_object *self = cqn_new(type, &imported_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_context *handle = used->handle;
    struct ibv_pd *pd;
    int err;
    CQN_CREATING(self, pd = ibv_import_pd(handle, number); err = errno);
    if (pd == NULL) {
        cqn_verbs_error(st, err, "ibv_import_pd", "handle %u", number);
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, pd);
    return (PyObject *)self;
}

/* ---- advice ---- */

/* Releases the GIL, because the kernel may read pages from a disk. The MRs stay open during the
 * call. */
static PyObject *give_advice(cqn_object *self, uint32_t advice, uint32_t flags, cqn_sg *sg)
{
    struct ibv_pd *handle = self->handle;
    int err;
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        cqn_enter(sg->pinned[i]);
    }
    CQN_IN_KERNEL(self, err = cqn_errno_of(ibv_advise_mr(handle, (enum ibv_advise_mr_advice)advice,
                                                         flags, sg->sge, sg->num_sge)));
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        cqn_leave(sg->pinned[i]);
    }
    if (err != 0) {
        return cqn_verbs_error(self->state, err, "ibv_advise_mr",
                               "advice %u, flags 0x%x, %llu bytes in %u element%s%s", advice, flags,
                               (unsigned long long)sg->length, sg->num_sge,
                               sg->num_sge == 1 ? "" : "s",
                               err == EINVAL || err == EFAULT || err == ENOENT
                                   ? ": advice is for MRs with access ON_DEMAND"
                                   : "");
    }
    Py_RETURN_NONE;
}

CQN_RARE static PyObject *pd_advise_mr(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                       PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"advice", "sg", "flags", NULL};
    CQN_COPY copy = NULL;
    cqn_object *self = CQN_OBJ(op);
    PyObject *in[3] = {NULL, NULL, NULL};
    uint32_t advice, flags = 0;
    cqn_sg_arrays arrays;
    cqn_sg sg = CQN_SG_IN(arrays);
    if (cqn_open(self) == NULL ||
        cqn_args("advise_mr", names, 2, 2, args, nargs, kwnames, in) < 0 ||
        cqn_member32(in[0], "advice", "an AdviseMRAdvice such as AdviseMRAdvice.PREFETCH",
                     UINT32_MAX, &advice) < 0 ||
        (in[2] != NULL && cqn_member32(in[2], "flags", "AdviseMRFlags such as AdviseMRFlags.FLUSH",
                                       UINT32_MAX, &flags) < 0) ||
        cqn_freeze(&in[1], &copy) < 0 || cqn_open(self) == NULL ||
        cqn_sg_gather(&sg, self->state, in[1]) < 0) {
        return NULL;
    }
    if (sg.num_sge == 0) {
        PyErr_SetString(PyExc_ValueError, "sg is empty: advice is about one element at least");
        return NULL;
    }
    if (!cqn_sg_fits(&sg, self, CQN_MAX_SGE)) {
        cqn_sg_refuse(&sg, self, self, CQN_MAX_SGE);
        return NULL;
    }
    return give_advice(self, advice, flags, &sg);
}

/* ---- the type ---- */

static PyObject *pd_get_handle(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const struct ibv_pd *pd = cqn_open(CQN_OBJ(op));
    return pd == NULL ? NULL : PyLong_FromUnsignedLong(pd->handle);
}

static PyObject *pd_repr(PyObject *op)
{
    CQN_LOCKED;
    const struct ibv_pd *pd = CQN_OBJ(op)->handle;
    return pd == NULL ? cqn_short_repr(op)
                      : PyUnicode_FromFormat("<%s on %s, handle %u>", CQN_OBJ(op)->kind->name,
                                             cqn_device_name(CQN_OBJ(op)), pd->handle);
}

static PyObject *pd_close_all(PyObject *self, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_close(CQN_OBJ(self), true) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef pd_methods[] = {
    {"advise_mr", (PyCFunction)(void (*)(void))pd_advise_mr, METH_FASTCALL | METH_KEYWORDS,
     "advise_mr($self, /, advice, sg, *, flags=0)\n--\n\n"
     "Advise the device on the use of memory that it pages on demand.\n\n"
     "advice: an hw.AdviseMRAdvice, such as PREFETCH, to fetch the pages ahead.\n"
     "sg: mr[a:b], an MR, or a list of these; the MRs need access ON_DEMAND.\n"
     "flags: hw.AdviseMRFlags; with FLUSH the call returns when it is done.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device takes no advice.\n\n"
     "Wraps ibv_advise_mr(3)."},
    {"from_handle", (PyCFunction)(void (*)(void))pd_from_handle,
     METH_CLASS | METH_VARARGS | METH_KEYWORDS,
     "from_handle($type, /, context, handle)\n--\n\n"
     "Return the PD of another process, on a context from Context.from_fd().\n\n"
     "context: that context.\n"
     "handle: the PD's attribute in that process.\n\n"
     "close() forgets it and deallocates nothing: the other process must keep it until then.\n"
     "Raises VerbsError (EOPNOTSUPP) where the device's provider imports no objects.\n\n"
     "Wraps ibv_import_pd(3) and ibv_unimport_pd(3)."},
    {"_close_all", pd_close_all, METH_NOARGS,
     "_close_all($self, /)\n--\n\n"
     "Close it with everything that was made from it, as a Context does."},
    CQN_OBJECT_METHODS(cqn_close_doc),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pd_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    {"handle", pd_get_handle, NULL,
     "The kernel's number of it within this context, for PD.from_handle().", NULL},
    CQN_POINTER("struct ibv_pd"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef pd_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot pd_slots[] = {
    {Py_tp_doc, "PD(context)\n--\n\n"
                "A protection domain: memory regions and queue pairs work together only within\n"
                "one.\n\n"
                "context: the Context.\n\n"
                "Wraps ibv_alloc_pd(3)."},
    {Py_tp_new, pd_new},
    {Py_tp_repr, pd_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, pd_methods},
    {Py_tp_getset, pd_getset},
    {Py_tp_members, pd_members},
    {0, NULL},
};

PyType_Spec cqn_pd_spec = {
    .name = "cqnotify.PD",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pd_slots,
};
