/* SPDX-License-Identifier: MIT */
/*
 * TD: a thread domain, whose objects are used by one thread; and ParentDomain: a PD with a thread
 * domain.
 *
 * A parent domain stands for its PD: the objects of both work together (see cqn_root_pd()). Its
 * type derives from PD, and is accepted in place of a PD.
 */

#include "verbs/verbs.h"

/* ---- TD ---- */

static int dealloc_td(void *handle)
{
    return ibv_dealloc_td(handle);
}

static const cqn_kind td_kind = {
    .name = "TD",
    .destroy_verb = "ibv_dealloc_td",
    .rank = CQN_RANK_PD,
    .destroy = dealloc_td,
    .clear = cqn_clear,
};

static void *alloc_td(struct ibv_context *context)
{
    struct ibv_td_init_attr attr = {.comp_mask = 0};
    return ibv_alloc_td(context, &attr);
}

CQN_RARE static PyObject *td_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static const cqn_alloc alloc = {alloc_td, "ibv_alloc_td", "thread domains"};
    return cqn_new_of_context(type, args, kwargs, &td_kind, &alloc);
}

static PyMethodDef td_methods[] = {CQN_OBJECT_METHODS(cqn_close_doc), {NULL, NULL, 0, NULL}};

static PyGetSetDef td_getset[] = {
    {"context", cqn_get_context, NULL, "The Context that it belongs to.", NULL},
    CQN_POINTER("struct ibv_td"),
    CQN_OBJECT_GETSET,
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef td_members[] = {CQN_OBJECT_MEMBERS, {NULL, 0, 0, 0, NULL}};

static PyType_Slot td_slots[] = {
    {Py_tp_doc,
     "TD(context)\n--\n\n"
     "A thread domain: the program promises that no two threads use its objects at a time.\n\n"
     "context: the Context.\n\n"
     "A ParentDomain takes it, and the device's provider may then do without locks. Raises\n"
     "VerbsError (EOPNOTSUPP) where the provider has no thread domains.\n\n"
     "Wraps ibv_alloc_td(3)."},
    {Py_tp_new, td_new},
    {Py_tp_repr, cqn_repr},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_methods, td_methods},
    {Py_tp_getset, td_getset},
    {Py_tp_members, td_members},
    {0, NULL},
};

PyType_Spec cqn_td_spec = {
    .name = "cqnotify.hw.TD",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = td_slots,
};

/* ---- ParentDomain ---- */

static int dealloc_parent(void *handle)
{
    return ibv_dealloc_pd(handle);
}

static const cqn_kind parent_kind = {
    .name = "ParentDomain",
    .destroy_verb = "ibv_dealloc_pd",
    .rank = CQN_RANK_PD,
    .destroy = dealloc_parent,
    .clear = cqn_clear,
};

/* `pd` must not be a parent domain, because providers would treat it as a PD. Returns -1 with an
 * exception. */
static int check_parts(cqn_state *st, PyObject *pd, PyObject *td)
{
    if (cqn_expect(pd, st->PD, "pd") < 0) {
        return -1;
    }
    if (PyObject_TypeCheck(pd, st->ParentDomain)) {
        PyErr_SetString(PyExc_TypeError, "pd must be a PD, and not itself a ParentDomain");
        return -1;
    }
    return td == NULL ? 0 : cqn_expect_beside(td, st->TD, "td", pd, "pd");
}

CQN_RARE static PyObject *parent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "td", NULL};
    PyObject *pd, *td = Py_None;
    cqn_state *st = cqn_state_of(type);
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:ParentDomain", names, &pd, &td)) {
        return NULL;
    }
    td = td == Py_None ? NULL : td;
    if (check_parts(st, pd, td) < 0) {
        return NULL;
    }
    cqn_object *used[2] = {CQN_OBJ(pd), CQN_OBJ(td)};
    cqn_object *self = cqn_new(type, &parent_kind, used, td != NULL ? 2 : 1);
    if (self == NULL) {
        return NULL;
    }
    struct ibv_parent_domain_init_attr attr = {
        .pd = used[0]->handle,
        .td = td != NULL ? used[1]->handle : NULL,
    };
    struct ibv_context *context = used[0]->context->base.handle;
    struct ibv_pd *parent;
    int err;
    CQN_CREATING(self, parent = ibv_alloc_parent_domain(context, &attr); err = errno);
    if (parent == NULL) {
        cqn_verbs_error(st, err, "ibv_alloc_parent_domain", "parent domains");
        Py_DECREF(self);
        return NULL;
    }
    cqn_adopt(self, parent);
    return (PyObject *)self;
}

static PyObject *parent_get_td(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_object *td = CQN_OBJ(op)->uses[1];
    return cqn_open(CQN_OBJ(op)) == NULL ? NULL : Py_NewRef(td == NULL ? Py_None : (PyObject *)td);
}

static PyGetSetDef parent_getset[] = {
    {"pd", cqn_get_used, NULL, "The PD that it stands for.", (void *)0},
    {"td", parent_get_td, NULL, "Its TD, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot parent_slots[] = {
    {Py_tp_doc,
     "ParentDomain(pd, td=None)\n--\n\n"
     "A PD with a thread domain, to be used wherever a PD is.\n\n"
     "pd: the PD that it stands for, which is no ParentDomain itself; objects of both work\n"
     "    together.\n"
     "td: the TD, or None.\n\n"
     "Raises VerbsError (EOPNOTSUPP) where the device's provider has no parent domains.\n\n"
     "Wraps ibv_alloc_parent_domain(3)."},
    {Py_tp_new, parent_new},
    {Py_tp_traverse, cqn_traverse},
    {Py_tp_clear, cqn_tp_clear},
    {Py_tp_finalize, cqn_finalize},
    {Py_tp_dealloc, cqn_dealloc},
    {Py_tp_getset, parent_getset},
    {0, NULL},
};

PyType_Spec cqn_parent_domain_spec = {
    .name = "cqnotify.hw.ParentDomain",
    .basicsize = sizeof(cqn_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = parent_slots,
};
