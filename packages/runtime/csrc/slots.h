/* The slots of a call: each holds one tensor of the Program, in one of the ways of `enum Hold`. */
#ifndef FLAMBEAU_SLOTS_H
#define FLAMBEAU_SLOTS_H

#include "executor.h"

#include <stdlib.h>
#include <string.h>

static inline void drop(Slot *slot)
{
    switch (slot->hold) {
        case HOLD_HANDLE:
            torch_api.delete_tensor(slot->handle);
            Py_XDECREF(slot->object);
            break;
        case HOLD_RAW: free(slot->data); break;
        case HOLD_OBJECT: Py_DECREF(slot->object); break;
        default: break;
    }
    memset(slot, 0, sizeof *slot);
}

static inline int drop_needs_gil(const Slot *slot) { return slot->hold == HOLD_OBJECT || (slot->hold == HOLD_HANDLE && slot->object != NULL); }

static inline int data_of(Slot *slot, void **data)
{
    if (slot->data == NULL && slot->handle != NULL && torch_api.get_data_ptr(slot->handle, &slot->data)) return -1;
    *data = slot->data;
    return 0;
}

/* A new reference to the slot's Python tensor. */
static inline PyObject *object_of(Slot *slot)
{
    if (slot->object == NULL) {
        if (slot->hold != HOLD_HANDLE) {
            PyErr_SetString(PyExc_SystemError, "a step reads a tensor that is not there");
            return NULL;
        }
        PyObject *wrapped = torch_api.wrap(slot->handle);
        if (wrapped == NULL) return NULL;
        /* wrap() may have moved from the handle: from now on the object holds the tensor. */
        torch_api.delete_tensor(slot->handle);
        slot->hold = HOLD_OBJECT;
        slot->object = wrapped;
        slot->handle = handle_of(wrapped);
    }
    return Py_NewRef(slot->object);
}

#endif
