/* Tail: what a suspended frame's function hands over in place of its value, a callable and arguments, to be called when its frame has gone.
 *
 * A Tail owns what it hands over and is used once.  Nothing else of ours holds an object of the program while a Tail runs: an object that the
 * program drops is freed there, as in eager, so finalizers and weak references see what they would see without us.
 */
#include "core.h"
#include <stddef.h>

typedef struct {
    PyObject_VAR_HEAD
    PyObject *handler;  /* FrameHandler in force while the function runs; NULL: that of the caller */
    PyObject *items[1]; /* the function, then its arguments */
} Tail;

/* The Tail whose call this thread is making, and the Tail whose arguments the function that is called next may release; NULL: none. */
static __thread Tail *current, *lent;

static PyObject *
tail_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (count < 1 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "Tail(function, *arguments)");
        return NULL;
    }
    Tail *tail = PyObject_NewVar(Tail, (PyTypeObject *)type, count);
    if (tail == NULL) {
        return NULL;
    }
    tail->handler = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        tail->items[i] = Py_NewRef(args[i]);
    }
    return (PyObject *)tail;
}

static void
drop_arguments(Tail *tail)
{
    for (Py_ssize_t i = 1; i < Py_SIZE(tail); i++) {
        Py_CLEAR(tail->items[i]);
    }
}

static void
tail_dealloc(Tail *self)
{
    drop_arguments(self);
    Py_XDECREF(self->items[0]);
    Py_XDECREF(self->handler);
    PyObject_Free(self);
}

void
tail_set_handler(PyObject *value, PyObject *handler)
{
    if (handler != NULL && value != NULL && Py_TYPE(value) == &Tail_Type) {
        Py_XSETREF(((Tail *)value)->handler, Py_NewRef(handler));
    }
}

PyObject *
tail_run_to_end(PyObject *value)
{
    while (value != NULL && Py_TYPE(value) == &Tail_Type) {
        Tail *tail = (Tail *)value, *outer = current, *outer_lent = lent;
        PyObject *handler = tail->handler, *former = handler == NULL ? NULL : hook_switch(handler);
        current = tail;
        lent = PyFunction_Check(tail->items[0]) ? tail : NULL; /* a Compiled reads its arguments, and lends them when it has */
        value = PyObject_Vectorcall(tail->items[0], tail->items + 1, (size_t)(Py_SIZE(tail) - 1), NULL);
        current = outer;
        lent = outer_lent;
        if (handler != NULL) {
            hook_restore(former);
        }
        Py_DECREF(tail);
    }
    return value;
}

PyObject *
tail_run_under(PyObject *handler, PyObject *value)
{
    PyObject *former = hook_switch(handler);
    PyObject *result = tail_run_to_end(value);
    hook_restore(former);
    return result;
}

void
tail_lend(PyObject *const *arguments)
{
    if (current != NULL && arguments == current->items + 1) {
        lent = current;
    }
}

/* The value of the frame: for the frame above, which calls it once. */
static PyObject *
tail_call(Tail *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    if (self->items[0] == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a suspended frame goes on once");
        return NULL;
    }
    Tail *taken = PyObject_NewVar(Tail, &Tail_Type, Py_SIZE(self));
    if (taken == NULL) {
        return NULL;
    }
    taken->handler = self->handler;
    self->handler = NULL;
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        taken->items[i] = self->items[i];
        self->items[i] = NULL;
    }
    return tail_run_to_end((PyObject *)taken);
}

static PyObject *
run_to_end(PyObject *Py_UNUSED(module), PyObject *value)
{
    return tail_run_to_end(Py_NewRef(value));
}

/* Called first by the functions that Tails hold: their frame has the arguments now. */
static PyObject *
release_arguments(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    Tail *tail = lent;
    lent = NULL;
    if (tail != NULL) {
        drop_arguments(tail);
    }
    Py_RETURN_NONE;
}

PyMethodDef tail_functions[] = {
    {"run_to_end", run_to_end, METH_O, "The value of a suspended frame: makes the calls that stand for it."},
    {"release_arguments", release_arguments, METH_NOARGS, "Leave the arguments of the function that a Tail calls to its frame alone."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Tail_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_capture._core.Tail",
    .tp_doc = "A call that stands for the value of a suspended frame.",
    .tp_basicsize = offsetof(Tail, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall = tail_vectorcall,
    .tp_call = (ternaryfunc)tail_call,
    .tp_dealloc = (destructor)tail_dealloc,
};
