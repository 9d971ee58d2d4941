/* SPDX-License-Identifier: MIT */
/*
 * RegisteredTable: what is registered, in the order of its addresses, and RegisteredRegion.
 *
 * A region is in one of these states: in use (users > 0), kept (in the list of these, the oldest
 * first, with a weak reference to its array), or dropped, when its MR is to be closed. A region in
 * use may be unlisted: a larger one has taken its place, or its array is being freed.
 *
 * Dropped regions are collected in a chain. The chain is turned into a list of MRs at the end, when
 * the table is consistent, because that allocates and so can run the garbage collector.
 */

#include "memory/registered.h"

/* What lets a peer do nothing. */
static const unsigned int LOCAL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
static const unsigned int WRITES =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/* ---- in the order of addresses ---- */

/* Returns how many regions begin at `start` or before. */
static size_t begun_at(const cqn_regions *set, uint64_t start)
{
    size_t low = 0, high = set->len;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (set->regions[mid]->start <= start) {
            low = mid + 1;
        }
        else {
            high = mid;
        }
    }
    return low;
}

static bool suits(unsigned int own, unsigned int wanted)
{
    return (wanted & ~own) == 0 && (own & ~wanted & ~LOCAL) == 0;
}

static cqn_region *containing(const cqn_regions *set, uint64_t start, uint64_t end)
{
    const size_t i = begun_at(set, start);
    return i > 0 && set->regions[i - 1]->end >= end ? set->regions[i - 1] : NULL;
}

static cqn_region *lookup(const cqn_registered *self, uint64_t start, uint64_t end,
                          unsigned int access)
{
    cqn_region *found = NULL;
    for (size_t i = 0; found == NULL && i < self->sets_len; i++) {
        if (suits(self->sets[i].access, access)) {
            found = containing(&self->sets[i], start, end);
        }
    }
    return found;
}

static cqn_regions *set_of(const cqn_registered *self, unsigned int access)
{
    for (size_t i = 0; i < self->sets_len; i++) {
        if (self->sets[i].access == access) {
            return &self->sets[i];
        }
    }
    return NULL;
}

/* Returns a set with room for one more region; NULL with MemoryError. */
static cqn_regions *set_with_room(cqn_registered *self, unsigned int access)
{
    cqn_regions *set = set_of(self, access);
    if (set == NULL) {
        cqn_regions *sets = PyMem_Resize(self->sets, cqn_regions, self->sets_len + 1);
        if (sets == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->sets = sets;
        set = &sets[self->sets_len++];
        *set = (cqn_regions){.access = access};
    }
    if (set->len == set->capacity) {
        const size_t capacity = 2 * set->capacity + 8;
        cqn_region **regions = PyMem_Resize(set->regions, cqn_region *, capacity);
        if (regions == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        set->regions = regions;
        set->capacity = capacity;
    }
    return set;
}

/* The table's reference goes to the caller. */
static void unlist(cqn_registered *self, cqn_region *region)
{
    cqn_regions *set = set_of(self, region->access);
    assert(set != NULL); /* sets stay */
    const size_t i = begun_at(set, region->start) - 1;
    assert(set->regions[i] == region);
    set->len--;
    memmove(&set->regions[i], &set->regions[i + 1], (set->len - i) * sizeof(set->regions[0]));
    region->is_listed = false;
}

/* ---- kept ---- */

static void keep(cqn_registered *self, cqn_region *region)
{
    region->is_kept = true;
    region->older = self->newest;
    region->newer = NULL;
    *(self->newest == NULL ? &self->oldest : &self->newest->newer) = region;
    self->newest = region;
    self->kept++;
    self->kept_bytes += region->end - region->start;
}

static void unkeep(cqn_registered *self, cqn_region *region)
{
    if (region->is_kept) {
        *(region->older == NULL ? &self->oldest : &region->older->newer) = region->newer;
        *(region->newer == NULL ? &self->newest : &region->newer->older) = region->older;
        region->is_kept = false;
        self->kept--;
        self->kept_bytes -= region->end - region->start;
    }
}

/* Takes a region without users out of everything, and into the chain. */
static void drop(cqn_registered *self, cqn_region *region, cqn_region **chain)
{
    unkeep(self, region);
    if (region->is_listed) {
        unlist(self, region);
    }
    else {
        Py_INCREF(region);
    }
    region->newer = *chain;
    *chain = region;
}

static void shrink(cqn_registered *self, cqn_region **chain)
{
    while (self->kept_bytes > self->max_bytes || self->kept > self->max_kept) {
        drop(self, self->oldest, chain);
    }
}

/* Returns a new list of the MRs, which may be incomplete: an MR that nobody closes is closed when
 * it is released. Releases the chain. Can run arbitrary code. */
static PyObject *dropped(cqn_region *chain)
{
    PyObject *list = PyList_New(0);
    while (chain != NULL) {
        cqn_region *one = chain;
        chain = one->newer;
        one->newer = NULL;
        Py_CLEAR(one->array); /* otherwise numpy would still refuse to resize it */
        if (list != NULL && PyList_Append(list, (PyObject *)one->mr) < 0) {
            Py_CLEAR(list);
        }
        Py_DECREF(one);
    }
    return list;
}

/* ---- use ---- */

/* Makes the region hold its memory. False: its array is being freed. */
static bool hold(cqn_region *self)
{
    if (self->holder == NULL && self->array != NULL) {
#if PY_VERSION_HEX >= 0x030D0000
        if (PyWeakref_GetRef(self->array, &self->holder) < 0) {
            PyErr_Clear();
        }
#else
        PyObject *array = PyWeakref_GetObject(self->array);
        self->holder = array == Py_None ? NULL : Py_XNewRef(array);
#endif
    }
    return self->holder != NULL;
}

static void use(cqn_registered *self, cqn_region *region, uint32_t users)
{
    unkeep(self, region);
    if (region->users == 0 && users > 0) {
        self->in_use++;
        self->in_use_bytes += region->end - region->start;
    }
    region->users += users;
}

/* Returns what contains the memory, with its holder; borrowed. */
static cqn_region *find(cqn_registered *self, uint64_t start, uint64_t end, unsigned int access)
{
    cqn_region *region;
    while ((region = lookup(self, start, end, access)) != NULL && !hold(region)) {
        unkeep(self, region);
        unlist(self, region);
        Py_DECREF(region);
    }
    return region;
}

cqn_region *cqn_registered_find(cqn_registered *self, uint64_t start, uint64_t end,
                                unsigned int access)
{
    cqn_region *region = find(self, start, end, access);
    if (region != NULL) {
        use(self, region, 1);
        self->reused++;
    }
    return (cqn_region *)Py_XNewRef((PyObject *)region);
}

cqn_region *cqn_registered_acquire(cqn_registered *self, PyObject *buffer, unsigned int access,
                                   uint64_t *start, uint64_t *length)
{
    Py_buffer view;
    int rc;
    CQN_UNLOCKED(
        rc = PyObject_GetBuffer(buffer, &view, access & WRITES ? PyBUF_WRITABLE : PyBUF_SIMPLE));
    if (rc < 0) {
        return NULL;
    }
    *start = (uint64_t)(uintptr_t)view.buf;
    *length = (uint64_t)view.len;
    cqn_region *region = cqn_registered_find(self, *start, *start + *length, access);
    CQN_UNLOCKED(PyBuffer_Release(&view));
    return region;
}

/* Ends one use. The chain gets what is to be dropped; the holder is the caller's to release. */
static PyObject *unuse(cqn_region *region, cqn_region **chain)
{
    cqn_registered *self = region->table;
    PyObject *holder = region->holder;
    if (--region->users > 0) {
        return NULL;
    }
    region->holder = NULL;
    self->in_use--;
    self->in_use_bytes -= region->end - region->start;
    if (region->array != NULL && region->is_listed && self->joined > 0) {
        keep(self, region);
        shrink(self, chain);
    }
    else {
        drop(self, region, chain);
    }
    return holder;
}

void cqn_registered_release(cqn_region *region)
{
    cqn_region *chain = NULL;
    PyObject *holder = unuse(region, &chain);
    if (chain != NULL) {
        PyObject *pending = cqn_take_exception();
        PyObject *on_drop = Py_NewRef(region->table->on_drop), *mrs = dropped(chain), *done = NULL;
        if (mrs != NULL && on_drop != Py_None) {
            PyObject *args[] = {mrs, holder == NULL ? Py_None : holder};
            CQN_UNLOCKED(done = PyObject_Vectorcall(on_drop, args, 2, NULL));
        }
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(on_drop);
        }
        Py_XDECREF(done);
        Py_XDECREF(mrs);
        Py_DECREF(on_drop);
        cqn_put_exception(pending);
    }
    Py_XDECREF(holder); /* last: this may free the array */
    Py_DECREF(region);
}

/* ---- RegisteredRegion ---- */

static int region_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_region *self = (cqn_region *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->table);
    Py_VISIT(self->mr);
    Py_VISIT(self->holder);
    Py_VISIT(self->array);
    return 0;
}

static void region_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    cqn_region *self = (cqn_region *)op;
    PyTypeObject *type = Py_TYPE(op);
    assert(!self->is_listed && !self->is_kept);
    Py_CLEAR(self->mr);
    Py_CLEAR(self->array);
    Py_CLEAR(self->holder);
    Py_CLEAR(self->table);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *region_watch(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_region *self = (cqn_region *)op;
    PyObject *array, *weak, *old = self->array;
    if (!PyArg_ParseTuple(args, "OO:watch", &array, &weak)) {
        return NULL;
    }
    if (!PyWeakref_Check(weak)) {
        PyErr_SetString(PyExc_TypeError, "weak must be a weak reference to the array");
        return NULL;
    }
    self->array = Py_NewRef(weak);
    self->array_id = array;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyMethodDef region_methods[] = {
    {"watch", region_watch, METH_VARARGS,
     "watch($self, array, weak, /)\n--\n\n"
     "Keep it when nothing uses it. `weak` is a weak reference to the array that has the memory; "
     "its callback calls forget()."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"mr", T_OBJECT_EX, offsetof(cqn_region, mr), READONLY, "The MR."},
    {"start", T_ULONGLONG, offsetof(cqn_region, start), READONLY, "Where the memory begins."},
    {"end", T_ULONGLONG, offsetof(cqn_region, end), READONLY, "Where it ends."},
    {"access", T_UINT, offsetof(cqn_region, access), READONLY, "What it is registered with."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot region_slots[] = {
    {Py_tp_doc, "Registered memory, of a RegisteredTable."},
    {Py_tp_traverse, region_traverse},
    {Py_tp_dealloc, region_dealloc},
    {Py_tp_methods, region_methods},
    {Py_tp_members, region_members},
    {0, NULL},
};

PyType_Spec cqn_region_spec = {
    .name = "cqnotify.RegisteredRegion",
    .basicsize = sizeof(cqn_region),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = region_slots,
};

/* ---- RegisteredTable ---- */

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"max_bytes", "max_kept", "on_drop", NULL};
    CQN_COPY copy = NULL;
    unsigned long long max_bytes, max_kept;
    PyObject *on_drop;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "KKO:RegisteredTable", names, &max_bytes,
                                     &max_kept, &on_drop)) {
        return NULL;
    }
    cqn_registered *self = (cqn_registered *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->max_bytes = max_bytes;
        self->max_kept = max_kept;
        self->on_drop = Py_NewRef(on_drop);
    }
    return (PyObject *)self;
}

/* Returns what `args` ask for, with its offset in the region; NULL, perhaps without an exception.
 */
static cqn_region *acquire(PyObject *op, PyObject *args, const char *format, uint64_t *offset)
{
    PyObject *buffer;
    unsigned int access;
    uint64_t start, length;
    if (!PyArg_ParseTuple(args, format, &buffer, &access)) {
        return NULL;
    }
    cqn_region *region =
        cqn_registered_acquire((cqn_registered *)op, buffer, access, &start, &length);
    *offset = region == NULL ? 0 : start - region->start;
    return region;
}

static PyObject *table_acquire(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    uint64_t offset;
    cqn_region *region = acquire(op, args, "OI:acquire", &offset);
    return region == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : (PyObject *)region;
}

static PyObject *table_locate(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    uint64_t offset;
    cqn_region *region = acquire(op, args, "OI:locate", &offset);
    if (region == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    return Py_BuildValue("NK", region, (unsigned long long)offset);
}

static PyObject *table_find(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned long long start, end;
    unsigned int access;
    if (!PyArg_ParseTuple(args, "KKI:find", &start, &end, &access)) {
        return NULL;
    }
    cqn_region *region = cqn_registered_find((cqn_registered *)op, start, end, access);
    return region == NULL ? Py_NewRef(Py_None) : (PyObject *)region;
}

static PyObject *table_has(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    unsigned long long start, end;
    unsigned int access;
    if (!PyArg_ParseTuple(args, "KKI:has", &start, &end, &access)) {
        return NULL;
    }
    cqn_region *region = find(self, start, end, access);
    PyObject *holder = NULL;
    if (region != NULL && region->users == 0) {
        holder = region->holder;
        region->holder = NULL;
    }
    Py_XDECREF(holder);
    return PyBool_FromLong(region != NULL);
}

static PyObject *table_extent(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    unsigned long long start, end;
    unsigned int access;
    PyObject *array;
    if (!PyArg_ParseTuple(args, "KKIO:extent", &start, &end, &access, &array)) {
        return NULL;
    }
    const cqn_registered *self = (cqn_registered *)op;
    const cqn_regions *set = set_of(self, access);
    unsigned long long low = start, high = end;
    for (size_t i = set == NULL ? 0 : begun_at(set, end - 1); i > 0; i--) {
        const cqn_region *region = set->regions[i - 1];
        if (region->end <= start) {
            break;
        }
        if (region->array != NULL && region->array_id == array) {
            low = region->start < low ? region->start : low;
            high = region->end > high ? region->end : high;
        }
    }
    return high - low <= self->max_bytes ? Py_BuildValue("KK", low, high)
                                         : Py_BuildValue("KK", start, end);
}

/* Puts a new region into its set, and those that it contains, which nobody finds any more, into the
 * chain if nobody uses them, or else into `used`. */
static void list(cqn_registered *self, cqn_regions *set, cqn_region *region, cqn_region **chain,
                 cqn_region **used)
{
    size_t i = begun_at(set, region->start);
    while (i > 0 && set->regions[i - 1]->start == region->start) {
        i--; /* there is at most one */
    }
    while (i < set->len && set->regions[i]->end <= region->end) {
        cqn_region *contained = set->regions[i];
        if (contained->users == 0) {
            drop(self, contained, chain);
        }
        else {
            unlist(self, contained);
            contained->newer = *used;
            *used = contained;
        }
    }
    memmove(&set->regions[i + 1], &set->regions[i], (set->len - i) * sizeof(set->regions[0]));
    set->regions[i] = (cqn_region *)Py_NewRef((PyObject *)region);
    set->len++;
    region->is_listed = true;
}

static cqn_region *new_region(cqn_registered *self, cqn_mr *mr, uint64_t start, unsigned int access,
                              PyObject *holder)
{
    PyTypeObject *type = cqn_state_of(Py_TYPE(self))->RegisteredRegion;
    cqn_region *region = (cqn_region *)type->tp_alloc(type, 0);
    if (region != NULL) {
        region->table = (cqn_registered *)Py_NewRef((PyObject *)self);
        region->mr = (cqn_mr *)Py_NewRef((PyObject *)mr);
        region->holder = Py_NewRef(holder);
        region->access = access;
        region->start = start;
        region->end = start + mr->memory.length;
    }
    return region;
}

static PyObject *table_add(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    PyObject *mr, *holder;
    unsigned long long start;
    unsigned int access, users;
    if (!PyArg_ParseTuple(args, "O!KIOI:add", cqn_state_of(Py_TYPE(op))->MR, &mr, &start, &access,
                          &holder, &users)) {
        return NULL;
    }
    cqn_region *region = new_region(self, (cqn_mr *)mr, start, access, holder), *chain = NULL,
               *in_use = NULL;
    if (region == NULL) {
        return NULL;
    }
    cqn_region *other = find(self, region->start, region->end, access);
    cqn_regions *set = set_with_room(self, access);
    if (set == NULL) {
        Py_DECREF(region);
        return NULL;
    }
    self->registered++;
    self->reused += users - (other == NULL ? 1 : 0);
    if (other != NULL) { /* another thread was faster */
        Py_INCREF(other);
        Py_SETREF(region, other);
    }
    else {
        list(self, set, region, &chain, &in_use);
    }
    use(self, region, users);
    while (in_use != NULL) {
        cqn_region *one = in_use;
        in_use = one->newer;
        one->newer = NULL;
        Py_DECREF(one);
    }
    return Py_BuildValue("NN", region, dropped(chain));
}

static PyObject *table_release(PyObject *op, PyObject *arg)
{
    CQN_LOCKED;
    cqn_region *region = (cqn_region *)arg, *chain = NULL;
    if (!PyObject_TypeCheck(arg, cqn_state_of(Py_TYPE(op))->RegisteredRegion) ||
        region->table != (cqn_registered *)op || region->users == 0) {
        PyErr_SetString(PyExc_ValueError, "this is no region of this table that is in use");
        return NULL;
    }
    PyObject *holder = unuse(region, &chain);
    PyObject *result = chain == NULL
                           ? Py_NewRef(Py_None)
                           : Py_BuildValue("NO", dropped(chain), holder == NULL ? Py_None : holder);
    Py_XDECREF(holder); /* last: this may free the array */
    return result;
}

static PyObject *table_forget(PyObject *op, PyObject *arg)
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    cqn_region *region = (cqn_region *)arg;
    if (PyObject_TypeCheck(arg, cqn_state_of(Py_TYPE(op))->RegisteredRegion) &&
        region->table == self) {
        unkeep(self, region);
        PyObject *array = region->array;
        region->array = NULL;
        if (region->is_listed) {
            unlist(self, region);
            Py_DECREF(region);
        }
        Py_XDECREF(array);
    }
    Py_RETURN_NONE;
}

static PyObject *table_drop_oldest(PyObject *op, PyObject *Py_UNUSED(none))
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    cqn_region *chain = NULL;
    if (self->oldest != NULL) {
        drop(self, self->oldest, &chain);
    }
    return dropped(chain);
}

static PyObject *table_set_limits(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    unsigned long long max_bytes, max_kept;
    if (!PyArg_ParseTuple(args, "KK:set_limits", &max_bytes, &max_kept)) {
        return NULL;
    }
    cqn_region *chain = NULL;
    self->max_bytes = max_bytes;
    self->max_kept = max_kept;
    shrink(self, &chain);
    return dropped(chain);
}

static PyObject *table_join(PyObject *op, PyObject *Py_UNUSED(none))
{
    CQN_LOCKED;
    ((cqn_registered *)op)->joined++;
    Py_RETURN_NONE;
}

static PyObject *drop_all(cqn_registered *self)
{
    cqn_region *chain = NULL;
    while (self->oldest != NULL) {
        drop(self, self->oldest, &chain);
    }
    return dropped(chain);
}

static PyObject *table_leave(PyObject *op, PyObject *Py_UNUSED(none))
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    self->joined -= self->joined > 0;
    return self->joined > 0 ? PyList_New(0) : drop_all(self);
}

static PyObject *table_drop_all(PyObject *op, PyObject *Py_UNUSED(none))
{
    CQN_LOCKED;
    return drop_all((cqn_registered *)op);
}

static PyObject *table_number(PyObject *op, void *offset)
{
    CQN_LOCKED;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)op + (size_t)offset));
}

static int table_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_registered *self = (cqn_registered *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->on_drop);
    for (size_t i = 0; i < self->sets_len; i++) {
        for (size_t j = 0; j < self->sets[i].len; j++) {
            Py_VISIT(self->sets[i].regions[j]);
        }
    }
    return 0;
}

static int registered_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    Py_CLEAR(self->on_drop);
    for (size_t i = 0; i < self->sets_len; i++) {
        while (self->sets[i].len > 0) {
            cqn_region *region = self->sets[i].regions[self->sets[i].len - 1];
            unkeep(self, region);
            unlist(self, region);
            Py_DECREF(region);
        }
    }
    return 0;
}

/* A region refers to its table, so there is none left. */
static void table_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    CQN_LOCKED;
    cqn_registered *self = (cqn_registered *)op;
    PyTypeObject *type = Py_TYPE(op);
    Py_CLEAR(self->on_drop);
    for (size_t i = 0; i < self->sets_len; i++) {
        assert(self->sets[i].len == 0);
        PyMem_Free(self->sets[i].regions);
    }
    PyMem_Free(self->sets);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"acquire", table_acquire, METH_VARARGS,
     "acquire($self, buffer, access, /)\n--\n\n"
     "Return the region that contains the buffer, with one more user; None if there is none."},
    {"locate", table_locate, METH_VARARGS,
     "locate($self, buffer, access, /)\n--\n\n"
     "The same as acquire(), with the offset of the buffer in the region's MR."},
    {"find", table_find, METH_VARARGS,
     "find($self, start, end, access, /)\n--\n\nThe same for addresses."},
    {"has", table_has, METH_VARARGS,
     "has($self, start, end, access, /)\n--\n\nWhether find() would return a region."},
    {"extent", table_extent, METH_VARARGS,
     "extent($self, start, end, access, array, /)\n--\n\n"
     "Where that begins and ends together with the regions of the array that overlap it; without "
     "them, if all would be more than max_bytes."},
    {"add", table_add, METH_VARARGS,
     "add($self, mr, start, access, holder, users, /)\n--\n\n"
     "Return a region of registered memory, or one that contains it, with so many users more; and "
     "a list of MRs that are needed no more."},
    {"release", table_release, METH_O,
     "release($self, region, /)\n--\n\n"
     "End one use. Return None; or a list of MRs to be closed, and an object to be kept "
     "meanwhile."},
    {"forget", table_forget, METH_O,
     "forget($self, region, /)\n--\n\nIts array was freed, and its MR closed."},
    {"drop_oldest", table_drop_oldest, METH_NOARGS,
     "drop_oldest($self, /)\n--\n\nReturn a list of the MR that was kept longest, to be closed."},
    {"drop_all", table_drop_all, METH_NOARGS,
     "drop_all($self, /)\n--\n\nReturn a list of all MRs that are kept, to be closed."},
    {"join", table_join, METH_NOARGS,
     "join($self, /)\n--\n\nAnother user of the table; while there are any, regions are kept."},
    {"leave", table_leave, METH_NOARGS,
     "leave($self, /)\n--\n\nReturn a list of MRs to be closed: the last user keeps none."},
    {"set_limits", table_set_limits, METH_VARARGS,
     "set_limits($self, max_bytes, max_kept, /)\n--\n\nReturn a list of MRs to be closed."},
    {NULL, NULL, 0, NULL},
};

#define NUMBER(field, doc)                                                       \
    {                                                                            \
#field, table_number, NULL, doc, (void *)offsetof(cqn_registered, field) \
    }
static PyGetSetDef table_getset[] = {
    NUMBER(registered, "Registrations that were added."),
    NUMBER(reused, "Uses of what was registered."),
    NUMBER(kept, "Regions that are kept."),
    NUMBER(kept_bytes, "Their bytes."),
    NUMBER(in_use, "Regions in use."),
    NUMBER(in_use_bytes, "Their bytes."),
    NUMBER(joined, "Users of the table: calls of join() less those of leave()."),
    NUMBER(max_bytes, "The limit of kept_bytes."),
    NUMBER(max_kept, "The limit of kept."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "RegisteredTable(max_bytes, max_kept, on_drop)\n--\n\n"
                "What is registered in a protection domain, found by its addresses. on_drop() is "
                "called by the core with what release() returns."},
    {Py_tp_new, table_new},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, registered_clear},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_getset, table_getset},
    {0, NULL},
};

PyType_Spec cqn_registered_spec = {
    .name = "cqnotify.RegisteredTable",
    .basicsize = sizeof(cqn_registered),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};
