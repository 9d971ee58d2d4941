/* SPDX-License-Identifier: MIT */
/*
 * The trash: references that are dropped later, when it is safe to run other code.
 */

#include "base/object.h"

/* To drop the last reference to an object can run any code. Where that must
 * wait, n references go to a chain, which the caller owns and empties when all is in
 * order. */
void cqn_trash_add_many(cqn_object **trash, cqn_object *object, size_t n)
{
    if (cqn_refs_defer(&object->refs, (PyObject *)object, n)) {
        object->trash_next = *trash;
        *trash = object;
    }
}

void cqn_trash_add(cqn_object **trash, cqn_object *object)
{
    cqn_trash_add_many(trash, object, 1);
}

void cqn_trash_empty(cqn_object *trash)
{
    while (trash != NULL) {
        cqn_object *object = trash;
        trash = object->trash_next;
        object->trash_next = NULL;
        cqn_refs_drop_deferred(&object->refs, (PyObject *)object);
    }
}
