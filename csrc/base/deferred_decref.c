/* SPDX-License-Identifier: MIT */
/*
 * References that are released later, when it is safe to run other code.
 *
 * Releasing the last reference to an object can run arbitrary code. Where this is not allowed yet,
 * the references go to a chain; its owner, the caller, releases them when its structures are
 * consistent.
 */

#include "base/object.h"

void cqn_decref_many_later(cqn_object **deferred, cqn_object *object, size_t n)
{
    if (cqn_refs_defer(&object->refs, (PyObject *)object, n)) {
        object->deferred_next = *deferred;
        *deferred = object;
    }
}

void cqn_decref_later(cqn_object **deferred, cqn_object *object)
{
    cqn_decref_many_later(deferred, object, 1);
}

void cqn_decref_deferred(cqn_object *deferred)
{
    while (deferred != NULL) {
        cqn_object *object = deferred;
        deferred = object->deferred_next;
        object->deferred_next = NULL;
        cqn_refs_drop_deferred(&object->refs, (PyObject *)object);
    }
}
