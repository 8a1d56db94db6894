/* Entry and Compiled: a compiled function as a Python object.
 *
 * A call binds its arguments as CPython would, into a flat array in the order of the frame's fast locals; runs the guard
 * programs of the entries, most recently used first; and calls the target of the first that holds with the inputs its program loaded.
 * When none holds, `on_miss(arguments)` is asked for an entry; None means "run the original function". Behind one that does not serve the
 * call after all it is `on_miss(arguments, entry)`.
 */
#include "core.h"
#include <stddef.h>
#include <structmember.h>

/* ---- Entry ---- */

/* What of the target's result is the function's result. */
enum { RESULT_WHOLE = -1, RESULT_AS_TUPLE = -2 /* or the index of the one item that is it */ };

typedef struct {
    PyObject_HEAD
    Program *program;
    PyObject *target;   /* NULL: the original function serves this call */
    Py_ssize_t item;    /* one of the above, or an index into the tuple or list that the target returns */
    PyObject *handler;  /* FrameHandler in force while the target runs; NULL: none */
    /* callable(exception that the target raised) -> the exception to raise; None: run the original function; or NotImplemented: the entry
       does not serve this call after all */
    PyObject *on_error;
    int last_resort;    /* stays behind all other entries */
    int runs_to_end;    /* the target returns a Tail, of which the call's result is the value */
    PyObject *info;     /* what Python keeps about the entry */
} Entry;

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "target", "item", "handler", "last_resort", "info", "on_error", "runs_to_end", NULL};
    PyObject *program, *target, *handler = Py_None, *info = Py_None, *on_error = Py_None;
    Py_ssize_t item = RESULT_WHOLE;
    int last_resort = 0, runs_to_end = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|nOpOOp:Entry", names, &Program_Type, &program, &target, &item, &handler,
                                     &last_resort, &info, &on_error, &runs_to_end)) {
        return NULL;
    }
    if (handler != Py_None && Py_TYPE(handler) != &FrameHandler_Type) {
        PyErr_SetString(PyExc_TypeError, "an Entry's handler is a FrameHandler or None");
        return NULL;
    }
    if (target != Py_None && !PyCallable_Check(target)) {
        PyErr_SetString(PyExc_TypeError, "an Entry's target is a callable or None");
        return NULL;
    }
    Entry *entry = (Entry *)type->tp_alloc(type, 0);
    if (entry == NULL) {
        return NULL;
    }
    entry->program = (Program *)Py_NewRef(program);
    entry->target = target == Py_None ? NULL : Py_NewRef(target);
    entry->item = item;
    entry->handler = handler == Py_None ? NULL : Py_NewRef(handler);
    entry->on_error = on_error == Py_None ? NULL : Py_NewRef(on_error);
    entry->last_resort = last_resort;
    entry->runs_to_end = runs_to_end;
    entry->info = Py_NewRef(info);
    return (PyObject *)entry;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->program);
    Py_VISIT(self->target);
    Py_VISIT(self->handler);
    Py_VISIT(self->on_error);
    Py_VISIT(self->info);
    return 0;
}

/* An entry never changes once made, and may be running: a cycle through it is broken at its Compiled. */
static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->program);
    Py_XDECREF(self->target);
    Py_XDECREF(self->handler);
    Py_XDECREF(self->on_error);
    Py_XDECREF(self->info);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef entry_members[] = {
    {"program", T_OBJECT_EX, offsetof(Entry, program), READONLY, "The GuardProgram."},
    {"target", T_OBJECT, offsetof(Entry, target), READONLY, "What is called with the loaded inputs; None runs the original function."},
    {"info", T_OBJECT_EX, offsetof(Entry, info), READONLY, "What Python keeps about this entry."},
    {"on_error", T_OBJECT, offsetof(Entry, on_error), READONLY, "What is asked when the target raises, or None."},
    {"item", T_PYSSIZET, offsetof(Entry, item), READONLY, "Index of the item of the target's result that is returned, or -1."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_capture._core.Entry",
    .tp_doc = "A guard program and the target it leads to.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_members = entry_members,
};

/* The item of a target's result that is the function's result; steals `result`. */
static PyObject *
take_item(PyObject *result, Py_ssize_t item)
{
    PyObject *taken = NULL;
    if (result == NULL || item == RESULT_WHOLE) {
        return result;
    }
    if (item == RESULT_AS_TUPLE) {
        if (PyTuple_CheckExact(result)) {
            return result;
        }
        taken = PySequence_Tuple(result);
    }
    else if (PyTuple_Check(result) && item < PyTuple_GET_SIZE(result)) {
        taken = Py_NewRef(PyTuple_GET_ITEM(result, item));
    }
    else if (PyList_Check(result) && item < PyList_GET_SIZE(result)) {
        taken = Py_NewRef(PyList_GET_ITEM(result, item));
    }
    else {
        PyErr_Format(PyExc_TypeError, "the backend's callable must return a tuple of more than %zd items, not %.80s", item,
                     Py_TYPE(result)->tp_name);
    }
    Py_DECREF(result);
    return taken;
}

/* The target has raised: whether that error is the call's, or the call is to run again, or another entry's. */
static NOINLINE Service
ask_on_error(Entry *entry)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyObject *former = hook_switch(NULL);
    PyObject *answer = PyObject_CallOneArg(entry->on_error, value);
    hook_restore(former);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    if (answer == Py_None) {
        Py_DECREF(answer);
        return RUNS_EAGERLY;
    }
    if (answer == Py_NotImplemented) {
        Py_DECREF(answer);
        return NOT_TAKEN;
    }
    if (answer != NULL) {
        if (PyExceptionInstance_Check(answer)) {
            PyErr_Restore(Py_NewRef(Py_TYPE(answer)), answer, PyException_GetTraceback(answer));
        }
        else {
            PyErr_SetString(PyExc_TypeError, "on_error must return an exception, None or NotImplemented");
            Py_DECREF(answer);
        }
    }
    return SERVED;
}

static inline Service
call_target(Entry *entry, PyObject *const *inputs, Py_ssize_t count, PyObject **result)
{
    PyObject *former = hook_switch(entry->handler);
    PyObject *returned = PyObject_Vectorcall(entry->target, inputs, (size_t)count, NULL);
    hook_restore(former);
    if (UNLIKELY(returned == NULL)) {
        *result = NULL;
        return entry->on_error != NULL ? ask_on_error(entry) : SERVED;
    }
    tail_set_handler(returned, entry->handler);
    *result = take_item(returned, entry->item);
    return SERVED;
}

#define SMALL_INPUTS 12

/* Runs guards, then the target. */
static inline Service
try_loading(Entry *entry, PyObject *function, PyObject *const *arguments, PyObject **inputs, Py_ssize_t count, PyObject **result)
{
    if (program_run(entry->program, function, arguments, inputs) != GUARDS_HOLD) {
        return NOT_TAKEN;
    }
    Service taken = call_target(entry, inputs, count, result);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(inputs[i]);
    }
    if (entry->runs_to_end && taken == SERVED) {
        *result = tail_run_under(entry->handler, *result);
    }
    return taken;
}

static NOINLINE Service
try_small(Entry *entry, PyObject *function, PyObject *const *arguments, Py_ssize_t count, PyObject **result)
{
    PyObject *inputs[SMALL_INPUTS];
    return try_loading(entry, function, arguments, inputs, count, result);
}

static NOINLINE Service
try_large(Entry *entry, PyObject *function, PyObject *const *arguments, Py_ssize_t count, PyObject **result)
{
    PyObject **inputs = PyMem_New(PyObject *, count);
    if (inputs == NULL) {
        PyErr_NoMemory();
        *result = NULL;
        return SERVED;
    }
    Service taken = try_loading(entry, function, arguments, inputs, count, result);
    PyMem_Free(inputs);
    return taken;
}

/* A call in the form it came in, for the original function; and bound. */
typedef struct {
    PyObject *function;
    PyObject *const *args;
    size_t nargsf;
    PyObject *kwnames;
    PyObject *const *bound;
    Py_ssize_t count;
} Invocation;

static Service
try_entry(Entry *entry, const Invocation *call, PyObject **result)
{
    if (UNLIKELY(!program_takes(entry->program, call->count))) {
        return NOT_TAKEN;
    }
    if (entry->target == NULL) {
        if (program_run(entry->program, call->function, call->bound, NULL) != GUARDS_HOLD) {
            return NOT_TAKEN;
        }
        PyObject *former = entry->handler == NULL ? NULL : hook_switch(entry->handler);
        tail_lend(call->args);
        *result = PyObject_Vectorcall(call->function, call->args, call->nargsf, call->kwnames);
        if (entry->handler != NULL) {
            hook_restore(former);
        }
        return SERVED;
    }
    if (program_passes_arguments(entry->program, call->count)) {
        /* The caller keeps the arguments alive: no copy, no reference counts. */
        if (program_run(entry->program, call->function, call->bound, NULL) != GUARDS_HOLD) {
            return NOT_TAKEN;
        }
        Service taken = call_target(entry, call->bound, call->count, result);
        if (entry->runs_to_end && taken == SERVED) {
            *result = tail_run_under(entry->handler, *result);
        }
        return taken;
    }
    Py_ssize_t count = program_input_count(entry->program);
    return count <= SMALL_INPUTS ? try_small(entry, call->function, call->bound, count, result)
                                 : try_large(entry, call->function, call->bound, count, result);
}

Service
entry_serve(PyObject *object, PyObject *function, PyObject *const *bound, Py_ssize_t count, PyObject **result)
{
    Entry *entry = (Entry *)object;
    Invocation call = {function, NULL, 0, NULL, bound, count};
    return entry->target == NULL ? NOT_TAKEN : try_entry(entry, &call, result);
}

/* The original function, as the caller called it. */
static NOINLINE PyObject *
run_eagerly(const Invocation *call)
{
    PyObject *former = hook_switch(NULL);
    tail_lend(call->args);
    PyObject *result = PyObject_Vectorcall(call->function, call->args, call->nargsf, call->kwnames);
    hook_restore(former);
    return result;
}

/* ---- Compiled ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* the original PyFunctionObject */
    PyObject *entries;  /* a tuple of Entry, replaced as a whole */
    PyObject *on_miss;  /* callable(arguments tuple) -> Entry | None; NULL: run the original function */
    PyObject *state;    /* what Python keeps about the callable */
    PyObject *weakrefs;
    /* the signature, from the code object */
    PyObject *code;     /* a function given another is no longer the one that was compiled */
    PyObject *names;    /* co_varnames */
    int positional;     /* parameters that may be given by position */
    int positional_only;
    int keyword_only;
    int has_varargs;
    int has_varkeywords;
    int count;          /* length of the bound array */
    char keeps_frames;  /* whether tracebacks keep our own frames */
} Compiled;

/* The hit entry moves to the front, so that a stable program tests one guard program a call. */
static void
move_to_front(Compiled *self, PyObject *entries, Py_ssize_t index)
{
    if (((Entry *)PyTuple_GET_ITEM(entries, index))->last_resort) {
        return;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    PyObject *moved = PyTuple_New(count);
    if (moved == NULL) {
        PyErr_Clear(); /* the order is only a matter of speed */
        return;
    }
    PyTuple_SET_ITEM(moved, 0, Py_NewRef(PyTuple_GET_ITEM(entries, index)));
    for (Py_ssize_t i = 0, at = 1; i < count; i++) {
        if (i != index) {
            PyTuple_SET_ITEM(moved, at++, Py_NewRef(PyTuple_GET_ITEM(entries, i)));
        }
    }
    if (self->entries == entries) {
        Py_SETREF(self->entries, moved);
    }
    else {
        Py_DECREF(moved);
    }
}

#define MOST_ANSWERS 16 /* of `on_miss`, for one call */

/* The answer of `on_miss`; `unserved` is the one before, or NULL. The tuple of arguments is gone before an entry runs: objects die where
 * eager frees them. */
static PyObject *
ask_on_miss(PyObject *on_miss, const Invocation *call, PyObject *unserved)
{
    PyObject *arguments = tuple_of(call->bound, call->count);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *former = hook_switch(NULL);
    PyObject *entry = PyObject_CallFunctionObjArgs(on_miss, arguments, unserved, NULL);
    hook_restore(former);
    Py_DECREF(arguments);
    return entry;
}

static NOINLINE PyObject *
call_missed(Compiled *self, const Invocation *call)
{
    PyObject *result;
    if (self->on_miss != NULL) {
        PyObject *on_miss = Py_NewRef(self->on_miss);
        PyObject *entry = NULL; /* that did not serve the call */
        Service taken = NOT_TAKEN;
        for (int asked = 0; asked < MOST_ANSWERS && taken == NOT_TAKEN; asked++) {
            Py_XSETREF(entry, ask_on_miss(on_miss, call, entry));
            if (entry == NULL || Py_TYPE(entry) != &Entry_Type) {
                break;
            }
            taken = try_entry((Entry *)entry, call, &result);
        }
        Py_DECREF(on_miss);
        if (entry == NULL) {
            return NULL;
        }
        Py_DECREF(entry);
        if (taken != NOT_TAKEN) {
            return taken == SERVED ? result : run_eagerly(call);
        }
    }
    tail_lend(call->args);
    return PyObject_Vectorcall(call->function, call->args, call->nargsf, call->kwnames);
}

static PyObject *
call_bound(Compiled *self, const Invocation *call)
{
    PyObject *entries = Py_NewRef(self->entries);
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    PyObject *result;
    for (Py_ssize_t i = 0; i < count; i++) {
        Service taken = try_entry((Entry *)PyTuple_GET_ITEM(entries, i), call, &result);
        if (taken != NOT_TAKEN) {
            if (UNLIKELY(i > 0)) {
                move_to_front(self, entries, i);
            }
            Py_DECREF(entries);
            return LIKELY(taken == SERVED) ? result : run_eagerly(call);
        }
    }
    Py_DECREF(entries);
    return call_missed(self, call);
}

/* ---- binding ---- */

/* Index of the parameter that `name` may be given to by keyword, or -1. */
static Py_ssize_t
find_keyword(const Compiled *self, PyObject *name)
{
    Py_ssize_t end = self->positional + self->keyword_only;
    for (Py_ssize_t i = self->positional_only; i < end; i++) {
        if (PyTuple_GET_ITEM(self->names, i) == name) {
            return i;
        }
    }
    for (Py_ssize_t i = self->positional_only; i < end; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(self->names, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

static int
bind_keywords(const Compiled *self, PyObject **bound, PyObject *const *values, PyObject *kwnames, PyObject *varkeywords)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (!PyUnicode_Check(name)) {
            return 0;
        }
        Py_ssize_t at = find_keyword(self, name);
        if (at >= 0) {
            if (bound[at] != NULL) {
                return 0; /* given twice */
            }
            bound[at] = Py_NewRef(values[i]);
        }
        else if (varkeywords == NULL || PyDict_SetItem(varkeywords, name, values[i]) < 0) {
            return 0;
        }
    }
    return 1;
}

static int
bind_defaults(const Compiled *self, PyObject **bound)
{
    PyFunctionObject *function = (PyFunctionObject *)self->function;
    PyObject *defaults = function->func_defaults;
    Py_ssize_t without_default = self->positional - (defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults));
    for (Py_ssize_t i = 0; i < self->positional; i++) {
        if (bound[i] == NULL) {
            if (i < without_default) {
                return 0;
            }
            bound[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - without_default));
        }
    }
    for (Py_ssize_t i = self->positional; i < self->positional + self->keyword_only; i++) {
        if (bound[i] == NULL) {
            PyObject *found = NULL;
            if (function->func_kwdefaults != NULL) {
                found = PyDict_GetItemWithError(function->func_kwdefaults, PyTuple_GET_ITEM(self->names, i));
            }
            if (found == NULL) {
                return 0;
            }
            bound[i] = Py_NewRef(found);
        }
    }
    return 1;
}

/* Fills `bound` (all NULL) with new references.  0: the call does not fit the signature (an error may be set). */
static int
bind(const Compiled *self, PyObject **bound, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Py_ssize_t named = self->positional + self->keyword_only;
    Py_ssize_t direct = nargs < self->positional ? nargs : self->positional;
    for (Py_ssize_t i = 0; i < direct; i++) {
        bound[i] = Py_NewRef(args[i]);
    }
    if (self->has_varargs) {
        bound[named] = tuple_of(args + direct, nargs - direct);
        if (bound[named] == NULL) {
            return 0;
        }
    }
    else if (nargs > direct) {
        return 0;
    }
    PyObject *varkeywords = NULL;
    if (self->has_varkeywords) {
        varkeywords = bound[named + self->has_varargs] = PyDict_New();
        if (varkeywords == NULL) {
            return 0;
        }
    }
    if (kwnames != NULL && !bind_keywords(self, bound, args + nargs, kwnames, varkeywords)) {
        return 0;
    }
    return bind_defaults(self, bound);
}

static PyObject *
call_binding(Compiled *self, PyObject **bound, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Invocation call = {self->function, args, nargsf, kwnames, bound, self->count};
    PyObject *result;
    for (int i = 0; i < self->count; i++) {
        bound[i] = NULL;
    }
    if (bind(self, bound, args, PyVectorcall_NARGS(nargsf), kwnames)) {
        result = call_bound(self, &call);
    }
    else {
        /* The original raises the very error; should it not (its defaults changed meanwhile), its result is the result. */
        PyErr_Clear();
        result = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    }
    for (int i = 0; i < self->count; i++) {
        Py_XDECREF(bound[i]);
    }
    return result;
}

#define SMALL_COUNT 12

static NOINLINE PyObject *
call_small(Compiled *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *bound[SMALL_COUNT];
    return call_binding(self, bound, args, nargsf, kwnames);
}

static NOINLINE PyObject *
call_large(Compiled *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject **bound = PyMem_New(PyObject *, self->count);
    if (bound == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = call_binding(self, bound, args, nargsf, kwnames);
    PyMem_Free(bound);
    return result;
}

/* While some thread is in a stance that concerns every call: callable(compiled) -> what to call in its place, or None.  Owned. */
static PyObject *redirect;

static PyObject *
set_redirect(PyObject *Py_UNUSED(module), PyObject *value)
{
    PyObject *former = redirect;
    redirect = value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(former);
    Py_RETURN_NONE;
}

PyMethodDef compiled_functions[] = {
    {"set_redirect", set_redirect, METH_O, "Have every call of a compiled function ask this callable (None: no one) what to call in its place."},
    {NULL, NULL, 0, NULL},
};

/* 1 when the call went elsewhere, with *result set (NULL: an error is set). */
static NOINLINE int
call_redirected(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames, PyObject **result)
{
    PyObject *asked = Py_NewRef(redirect);
    PyObject *target = PyObject_CallOneArg(asked, object);
    Py_DECREF(asked);
    if (target == Py_None) {
        Py_DECREF(target);
        return 0;
    }
    *result = target == NULL ? NULL : PyObject_Vectorcall(target, args, nargsf, kwnames);
    Py_XDECREF(target);
    return 1;
}

static PyObject *
compiled_vectorcall(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Compiled *self = (Compiled *)object;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *result;
    if (UNLIKELY(PyFunction_GET_CODE(self->function) != self->code)) {
        return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    }
    if (UNLIKELY(redirect != NULL) && call_redirected(object, args, nargsf, kwnames, &result)) {
        return result;
    }
    Py_INCREF(self); /* the call may drop the caller's last reference */
    if (self->on_miss == NULL && PyTuple_GET_SIZE(self->entries) == 0) {
        result = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    }
    else if (LIKELY(kwnames == NULL && nargs == self->positional && self->count == self->positional)) {
        Invocation call = {self->function, args, nargsf, NULL, args, nargs};
        result = call_bound(self, &call);
    }
    else if (self->count <= SMALL_COUNT) {
        result = call_small(self, args, nargsf, kwnames);
    }
    else {
        result = call_large(self, args, nargsf, kwnames);
    }
    if (UNLIKELY(result == NULL) && !self->keeps_frames) {
        trim_raised(self->on_miss == NULL ? self->code : NULL);
    }
    Py_DECREF(self);
    return result;
}

/* ---- the Python type ---- */

static PyObject *
compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "on_miss", "state", NULL};
    PyObject *function, *on_miss = Py_None, *state = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OO:Compiled", names, &PyFunction_Type, &function, &on_miss, &state)) {
        return NULL;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    PyObject *varnames = PyCode_GetVarnames(code);
    PyObject *entries = PyTuple_New(0);
    Compiled *self = varnames == NULL || entries == NULL ? NULL : (Compiled *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(varnames);
        Py_XDECREF(entries);
        return NULL;
    }
    self->vectorcall = compiled_vectorcall;
    self->function = Py_NewRef(function);
    self->entries = entries;
    self->on_miss = on_miss == Py_None ? NULL : Py_NewRef(on_miss);
    self->state = Py_NewRef(state);
    self->code = Py_NewRef(code);
    self->names = varnames;
    self->positional = code->co_argcount;
    self->positional_only = code->co_posonlyargcount;
    self->keyword_only = code->co_kwonlyargcount;
    self->has_varargs = (code->co_flags & CO_VARARGS) != 0;
    self->has_varkeywords = (code->co_flags & CO_VARKEYWORDS) != 0;
    self->count = self->positional + self->keyword_only + self->has_varargs + self->has_varkeywords;
    return (PyObject *)self;
}

static int
compiled_traverse(Compiled *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->entries);
    Py_VISIT(self->on_miss);
    Py_VISIT(self->state);
    return 0;
}

static int
compiled_clear(Compiled *self)
{
    /* `function` stays, so that a call from a finalizer still works. */
    PyObject *none = PyTuple_New(0);
    if (none != NULL) {
        Py_XSETREF(self->entries, none);
    }
    else {
        PyErr_Clear();
    }
    Py_CLEAR(self->on_miss);
    Py_XSETREF(self->state, Py_NewRef(Py_None));
    return 0;
}

static void
compiled_dealloc(Compiled *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->function);
    Py_XDECREF(self->entries);
    Py_XDECREF(self->on_miss);
    Py_XDECREF(self->state);
    Py_XDECREF(self->code);
    Py_XDECREF(self->names);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
compiled_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(owner))
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *
compiled_repr(Compiled *self)
{
    return PyUnicode_FromFormat("<compiled %R>", self->function);
}

/* Attributes that are not the type's own are the function's: its name, doc, signature, and whatever users put on it. */
static PyObject *
compiled_getattro(PyObject *self, PyObject *name)
{
    PyObject *found = _PyType_Lookup(Py_TYPE(self), name);
    if (found != NULL && Py_TYPE(found)->tp_descr_set == NULL && Py_TYPE(found)->tp_descr_get == NULL) {
        found = NULL; /* __doc__ and __module__ of the type itself */
    }
    return found != NULL ? PyObject_GenericGetAttr(self, name) : PyObject_GetAttr(((Compiled *)self)->function, name);
}

static int
compiled_setattro(PyObject *self, PyObject *name, PyObject *value)
{
    PyObject *found = _PyType_Lookup(Py_TYPE(self), name);
    if (found != NULL && Py_TYPE(found)->tp_descr_set != NULL) {
        return PyObject_GenericSetAttr(self, name, value);
    }
    return PyObject_SetAttr(((Compiled *)self)->function, name, value);
}

static PyObject *
compiled_get_entries(Compiled *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->entries);
}

static int
compiled_set_entries(Compiled *self, PyObject *value, void *Py_UNUSED(closure))
{
    int valid = value != NULL && PyTuple_CheckExact(value);
    for (Py_ssize_t i = 0; valid && i < PyTuple_GET_SIZE(value); i++) {
        valid = Py_TYPE(PyTuple_GET_ITEM(value, i)) == &Entry_Type;
    }
    if (!valid) {
        PyErr_SetString(PyExc_TypeError, "entries must be a tuple of Entry");
        return -1;
    }
    Py_SETREF(self->entries, Py_NewRef(value));
    return 0;
}

static PyObject *
compiled_deepcopy(PyObject *self, PyObject *Py_UNUSED(memo))
{
    return Py_NewRef(self);
}

/* Pickled as functions are: by name, which must lead back to this object. */
static PyObject *
compiled_reduce(Compiled *self, PyObject *Py_UNUSED(ignored))
{
    return PyObject_GetAttrString(self->function, "__qualname__");
}

static PyGetSetDef compiled_getset[] = {
    {"entries", (getter)compiled_get_entries, (setter)compiled_set_entries, "The entries, most recently used first.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef compiled_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Compiled, function), READONLY, "The original function."},
    {"on_miss", T_OBJECT, offsetof(Compiled, on_miss), 0, "Called with the bound arguments when no entry serves."},
    {"state", T_OBJECT, offsetof(Compiled, state), 0, "What Python keeps about this callable."},
    {"keeps_frames", T_BOOL, offsetof(Compiled, keeps_frames), 0, "Whether tracebacks of errors keep our own frames."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef compiled_methods[] = {
    {"__reduce__", (PyCFunction)compiled_reduce, METH_NOARGS, "Functions are pickled by name."},
    {"__copy__", compiled_deepcopy, METH_NOARGS, "Functions are copied by reference."},
    {"__deepcopy__", compiled_deepcopy, METH_O, "Functions are copied by reference."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Compiled_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_capture._core.Compiled",
    .tp_doc = "A compiled function: called, bound and inspected like the function it was made from.",
    .tp_basicsize = sizeof(Compiled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Compiled, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = compiled_new,
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_weaklistoffset = offsetof(Compiled, weakrefs),
    .tp_descr_get = compiled_get,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_getattro = compiled_getattro,
    .tp_setattro = compiled_setattro,
    .tp_getset = compiled_getset,
    .tp_members = compiled_members,
    .tp_methods = compiled_methods,
};
