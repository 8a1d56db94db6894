/* The PEP 523 frame-evaluation hook: Python frames that a compiled program reaches below a graph break are served by entries too.
 *
 * A FrameHandler says what to do with frames: it holds entries by code object, and `on_miss(function, arguments)` for frames that none
 * serves.  A handler is in force in one thread at a time it is given to `call_with_handler` (or set on the entry being called); outside
 * of that no hook is installed, since a hook costs every Python call in the process and, before 3.13, C stack.
 *
 * A frame that an entry serves is never run: it is dropped with its arguments, which is all that a fresh frame holds.  This file alone sees CPython's
 * internal structures; whatever is unusual about a frame leaves it to the interpreter.
 */
#define Py_BUILD_CORE 1
#include "core.h"
#undef _PyGC_FINALIZED
#include "internal/pycore_frame.h"
#include "structmember.h"
#include <stddef.h>

#if PY_VERSION_HEX >= 0x030E0000
#define HOOK_SUPPORTED 0 /* tagged references in frames: not written yet */
#else
#define HOOK_SUPPORTED 1
#endif

typedef struct {
    PyObject_HEAD
    PyObject *on_miss; /* (function, arguments) -> Entry, None (run this frame), False (and every later one of its code) or True (and all below) */
    PyObject *table;   /* {id of code: (code, tuple of entries), (code, False) or (code, True)} */
    int intercepts;    /* no frame is run but by on_miss: it gives (result,), or True as above; arguments are None for what is no fresh call */
} FrameHandler;

static __thread FrameHandler *current; /* owned while in force */
static int threads_with_handler;       /* the hook is installed while this is not 0 */
static Py_ssize_t extra_index = -1;

#if HOOK_SUPPORTED

/* ---- what differs between versions ---- */

#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(frame) ((PyCodeObject *)(frame)->f_executable)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_AT_START(frame) ((frame)->instr_ptr == _PyCode_CODE(FRAME_CODE(frame)))
#elif PY_VERSION_HEX >= 0x030C0000
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#define FRAME_AT_START(frame) ((frame)->prev_instr == _PyCode_CODE(FRAME_CODE(frame)) - 1)
#else
#define FRAME_CODE(frame) ((frame)->f_code)
#define FRAME_FUNCTION(frame) ((PyObject *)(frame)->f_func)
#define FRAME_AT_START(frame) ((frame)->prev_instr == _PyCode_CODE(FRAME_CODE(frame)) - 1)
#endif

#if PY_VERSION_HEX >= 0x030D0000

extern void _PyEval_FrameClearAndPop(PyThreadState *, struct _PyInterpreterFrame *);

static void
drop_frame(PyThreadState *tstate, struct _PyInterpreterFrame *frame)
{
    _PyEval_FrameClearAndPop(tstate, frame);
}

#elif PY_VERSION_HEX >= 0x030C0000

/* The evaluation function owns the frame, and nothing that clears one is exported: release what it holds and pop it off the data stack. */
static void
drop_frame(PyThreadState *tstate, struct _PyInterpreterFrame *frame)
{
    for (int i = 0; i < frame->stacktop; i++) {
        Py_XDECREF(frame->localsplus[i]);
    }
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(frame->f_code);
    PyObject **base = (PyObject **)frame;
    _PyStackChunk *chunk = tstate->datastack_chunk;
    if (base != &chunk->data[0]) {
        tstate->datastack_top = base;
        return;
    }
    _PyStackChunk *below = chunk->previous;
    tstate->datastack_top = &below->data[below->top];
    tstate->datastack_chunk = below;
    tstate->datastack_limit = (PyObject **)((char *)below + below->size);
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
}

#else

static void
drop_frame(PyThreadState *Py_UNUSED(tstate), struct _PyInterpreterFrame *Py_UNUSED(frame))
{
    /* On 3.11 the caller of the evaluation function clears the frame. */
}

#endif

/* ---- the evaluation function ---- */

static PyObject *evaluate(PyThreadState *, struct _PyInterpreterFrame *, int);

static int
is_skipped(PyCodeObject *code)
{
    void *extra = NULL;
#if PY_VERSION_HEX >= 0x030C0000
    PyUnstable_Code_GetExtra((PyObject *)code, extra_index, &extra);
#else
    _PyCode_GetExtra((PyObject *)code, extra_index, &extra);
#endif
    return extra != NULL;
}

/* Whether the frame is a fresh call of a function of code without these flags, seen by nobody else. */
static int
is_eligible(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag, int kinds)
{
    const int function = CO_OPTIMIZED | CO_NEWLOCALS;
    if (throwflag || frame->owner != FRAME_OWNED_BY_THREAD || frame->frame_obj != NULL || frame->f_locals != NULL ||
        !FRAME_AT_START(frame) || tstate->c_tracefunc != NULL || tstate->c_profilefunc != NULL) {
        return 0;
    }
    PyCodeObject *code = FRAME_CODE(frame);
    if ((code->co_flags & function) != function || (code->co_flags & kinds) || is_skipped(code)) {
        return 0;
    }
    /* Another user of PEP 523 above or below: the two would rewrite one another's code for ever. */
    return _PyInterpreterState_GetEvalFrameFunc(tstate->interp) == evaluate;
}

static Py_ssize_t
argument_count(const PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static PyObject *
call_on_miss(FrameHandler *handler, PyObject *function, PyCodeObject *code, PyObject *const *arguments)
{
    Py_ssize_t count = argument_count(code);
    PyObject *bound = arguments == NULL ? Py_NewRef(Py_None) : tuple_of(arguments, count);
    if (bound == NULL) {
        return NULL;
    }
    PyObject *former = hook_switch(NULL);
    PyObject *answer = PyObject_CallFunctionObjArgs(handler->on_miss, function, bound, NULL);
    hook_restore(former);
    Py_DECREF(bound);
    return answer;
}

/* The entry, or True, that on_miss gives for this frame (a new reference; NULL: none, with or without an error set), kept for later frames. */
static PyObject *
ask(FrameHandler *handler, PyObject *key, PyObject *known, PyObject *function, PyCodeObject *code, PyObject *const *arguments)
{
    PyObject *answer = call_on_miss(handler, function, code, arguments);
    if (answer == NULL || answer == Py_None) {
        Py_XDECREF(answer);
        return NULL;
    }
    PyObject *value = NULL;
    if (PyBool_Check(answer)) {
        value = Py_BuildValue("(OO)", code, answer);
    }
    else if (Py_TYPE(answer) != &Entry_Type) {
        PyErr_SetString(PyExc_TypeError, "on_miss must return an Entry, None or a bool");
    }
    else {
        PyObject *first = PyTuple_Pack(1, answer);
        PyObject *entries = first == NULL ? NULL : known == NULL ? Py_NewRef(first) : PySequence_Concat(first, known);
        value = entries == NULL ? NULL : Py_BuildValue("(OO)", code, entries);
        Py_XDECREF(first);
        Py_XDECREF(entries);
    }
    int stored = value == NULL ? -1 : PyDict_SetItem(handler->table, key, value);
    Py_XDECREF(value);
    if (stored < 0 || answer == Py_False) {
        Py_CLEAR(answer);
    }
    return answer;
}

/* SERVED: *result is the frame's result (NULL: an error is set).  Else the frame is to be evaluated, by RUNS_EAGERLY with no handler in force.
 * Its arguments stay in place in each case. */
static NOINLINE Service
serve(FrameHandler *handler, struct _PyInterpreterFrame *frame, PyObject **result)
{
    PyCodeObject *code = FRAME_CODE(frame);
    PyObject *function = FRAME_FUNCTION(frame), *known = NULL;
    Service taken = NOT_TAKEN;
    *result = NULL;
    PyObject *key = PyLong_FromVoidPtr(code);
    PyObject *value = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(handler->table, key));
    if (value == NULL && PyErr_Occurred()) {
        taken = SERVED;
        goto done;
    }
    if (value != NULL) {
        known = PyTuple_GET_ITEM(value, 1);
        if (PyBool_Check(known)) {
            taken = known == Py_True ? RUNS_EAGERLY : NOT_TAKEN;
            goto done;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(known) && taken == NOT_TAKEN; i++) {
            taken = entry_serve(PyTuple_GET_ITEM(known, i), function, frame->localsplus, argument_count(code), result);
        }
    }
    if (taken == NOT_TAKEN) {
        PyObject *entry = ask(handler, key, known, function, code, frame->localsplus);
        if (entry == Py_True) {
            taken = RUNS_EAGERLY;
            Py_DECREF(entry);
        }
        else if (entry != NULL) {
            taken = entry_serve(entry, function, frame->localsplus, argument_count(code), result);
            Py_DECREF(entry);
        }
        else {
            taken = PyErr_Occurred() != NULL ? SERVED : NOT_TAKEN;
        }
    }
done:
    Py_XDECREF(value);
    Py_XDECREF(key);
    return taken;
}

/* Frames that run one in another while a handler is in force.  CPython runs a call of a Python function in the loop of its caller
 * unless a hook is installed; then each takes C stack, which a raised recursion limit does not bound, and of which 3.12 and later
 * count 1,500 calls. */
#define MOST_NESTED 600
static __thread int nested;

static PyObject *
without_handler(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag)
{
    PyObject *former = hook_switch(NULL);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    hook_restore(former);
    return result;
}

/* Has the frame raise the error that is set, where it stands. */
static PyObject *
refuse_frame(PyThreadState *tstate, struct _PyInterpreterFrame *frame)
{
    return without_handler(tstate, frame, 1);
}

/* What on_miss of a handler that intercepts makes of the frame. */
static PyObject *
intercept(FrameHandler *handler, PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag)
{
    PyCodeObject *code = FRAME_CODE(frame);
    int fresh = is_eligible(tstate, frame, throwflag, 0);
    PyObject *answer = call_on_miss(handler, FRAME_FUNCTION(frame), code, fresh ? frame->localsplus : NULL);
    if (answer == Py_True) {
        Py_DECREF(answer);
        return without_handler(tstate, frame, throwflag);
    }
    PyObject *result = NULL;
    if (answer != NULL && PyTuple_CheckExact(answer) && PyTuple_GET_SIZE(answer) == 1) {
        result = Py_NewRef(PyTuple_GET_ITEM(answer, 0));
    }
    else if (answer != NULL) {
        PyErr_SetString(PyExc_TypeError, "on_miss of a handler that intercepts must return (result,) or True");
    }
    Py_XDECREF(answer);
    if (fresh) {
        drop_frame(tstate, frame);
        return result;
    }
    if (result != NULL) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_TypeError, "on_miss gave a result for a frame that is no fresh call");
    }
    return refuse_frame(tstate, frame);
}

static PyObject *
with_handler(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag)
{
    PyObject *result;
    const int kinds = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    if (current->intercepts) {
        FrameHandler *interceptor = (FrameHandler *)Py_NewRef(current);
        result = intercept(interceptor, tstate, frame, throwflag);
        Py_DECREF(interceptor);
        return result;
    }
    if (!is_eligible(tstate, frame, throwflag, kinds)) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    FrameHandler *handler = current;
    Py_INCREF(handler);
    Service taken = serve(handler, frame, &result);
    Py_DECREF(handler);
    if (taken == NOT_TAKEN) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    if (taken == RUNS_EAGERLY) {
        return without_handler(tstate, frame, throwflag);
    }
    drop_frame(tstate, frame);
    return result;
}

/* What evaluated frames before: another compiler's function, which may stay installed when that
   compiler has failed. Threads without a handler go on with it. */
static _PyFrameEvalFunction covered = _PyEval_EvalFrameDefault;

static PyObject *
evaluate(PyThreadState *tstate, struct _PyInterpreterFrame *frame, int throwflag)
{
    if (LIKELY(current == NULL)) {
        return covered(tstate, frame, throwflag);
    }
    if (nested >= MOST_NESTED) {
        if (current->intercepts) {
            PyErr_SetString(PyExc_RecursionError, "too many intercepted calls run one in another");
            return refuse_frame(tstate, frame);
        }
        return without_handler(tstate, frame, throwflag);
    }
    nested++;
    PyObject *result = with_handler(tstate, frame, throwflag);
    nested--;
    return result;
}

static void
install(int on)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (on && now != evaluate) {
        covered = now;
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    }
    else if (!on && now == evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interp, covered);
    }
}

#else

static void
install(int Py_UNUSED(on))
{
}

#endif

/* ---- switching ---- */

static void
put_in_force(FrameHandler *handler)
{
    threads_with_handler += (handler != NULL) - (current != NULL);
    if ((handler != NULL) != (current != NULL)) {
        install(threads_with_handler > 0);
    }
    current = handler;
}

PyObject *
hook_switch(PyObject *handler)
{
    if (LIKELY(handler == NULL && threads_with_handler == 0)) {
        return NULL;
    }
    FrameHandler *former = current;
    put_in_force((FrameHandler *)Py_XNewRef(handler));
    return (PyObject *)former;
}

void
hook_restore(PyObject *former)
{
    if (LIKELY(former == NULL && threads_with_handler == 0)) {
        return;
    }
    FrameHandler *left = current;
    put_in_force((FrameHandler *)former);
    Py_XDECREF(left);
}

/* ---- FrameHandler as a Python type, and the module's functions ---- */

static PyObject *
handler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"on_miss", "intercepts", NULL};
    PyObject *on_miss;
    int intercepts = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p:FrameHandler", names, &on_miss, &intercepts)) {
        return NULL;
    }
    FrameHandler *handler = (FrameHandler *)type->tp_alloc(type, 0);
    if (handler == NULL) {
        return NULL;
    }
    handler->on_miss = Py_NewRef(on_miss);
    handler->intercepts = intercepts;
    handler->table = PyDict_New();
    if (handler->table == NULL) {
        Py_CLEAR(handler);
    }
    return (PyObject *)handler;
}

static int
handler_traverse(FrameHandler *self, visitproc visit, void *arg)
{
    Py_VISIT(self->on_miss);
    Py_VISIT(self->table);
    return 0;
}

static int
handler_clear(FrameHandler *self)
{
    /* Not on_miss: a handler that is still in force must stay callable. */
    if (self->table != NULL) {
        PyDict_Clear(self->table);
    }
    return 0;
}

static void
handler_dealloc(FrameHandler *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->on_miss);
    Py_XDECREF(self->table);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef handler_members[] = {
    {"table", T_OBJECT_EX, offsetof(FrameHandler, table), READONLY, "{id of code: (code, entries) or (code, False)}."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject FrameHandler_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_capture._core.FrameHandler",
    .tp_doc = "What to do with frames: entries by code object, and on_miss(function, arguments) for the others.",
    .tp_basicsize = sizeof(FrameHandler),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = handler_new,
    .tp_traverse = (traverseproc)handler_traverse,
    .tp_clear = (inquiry)handler_clear,
    .tp_dealloc = (destructor)handler_dealloc,
    .tp_members = handler_members,
};

static PyObject *
call_with_handler(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 2 || (args[0] != Py_None && Py_TYPE(args[0]) != &FrameHandler_Type)) {
        PyErr_SetString(PyExc_TypeError, "call_with_handler(handler or None, callable, ...)");
        return NULL;
    }
    PyObject *former = hook_switch(args[0] == Py_None ? NULL : args[0]);
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(nargs - 2), kwnames);
    hook_restore(former);
    return result;
}

static PyObject *
mark_skip(PyObject *Py_UNUSED(module), PyObject *code)
{
    static char mark;
    if (!PyCode_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "mark_skip expects a code object");
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030C0000
    int set = PyUnstable_Code_SetExtra(code, extra_index, &mark);
#else
    int set = _PyCode_SetExtra(code, extra_index, &mark);
#endif
    if (set < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
hook_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
#if HOOK_SUPPORTED
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate);
#else
    Py_RETURN_FALSE;
#endif
}

int
hook_init(PyObject *module)
{
#if PY_VERSION_HEX >= 0x030C0000
    extra_index = PyUnstable_Eval_RequestCodeExtraIndex(NULL);
#else
    extra_index = _PyEval_RequestCodeExtraIndex(NULL);
#endif
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no co_extra index is left");
        return -1;
    }
    return PyModule_AddIntConstant(module, "hook_supported", HOOK_SUPPORTED);
}

PyMethodDef hook_methods[] = {
    {"call_with_handler", (PyCFunction)(void (*)(void))call_with_handler, METH_FASTCALL | METH_KEYWORDS,
     "Call with a FrameHandler (or None) in force in this thread."},
    {"mark_skip", mark_skip, METH_O, "Leave frames of this code object to the interpreter."},
    {"hook_installed", hook_installed, METH_NOARGS, "Whether the evaluation function is installed now."},
    {NULL, NULL, 0, NULL},
};
