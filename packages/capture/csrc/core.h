/* flambeau_capture._core: the parts of frame capture that run on every call of a compiled function.
 *
 *   tensor.c    reads a tensor's fields and torch's thread-local state, without torch headers
 *   program.c   GuardProgram: a flat program that loads origins and checks guards
 *   compiled.c  Entry and Compiled: argument binding, the entries of a callable, its fast path
 *   tail.c      Tail: the calls that stand for a suspended frame's value
 *   traceback.c takes our own frames out of tracebacks
 *   hook.c      the PEP 523 frame-evaluation hook (the only file that sees CPython-internal structures)
 *   module.c    the module
 *
 * All of it runs under the GIL.  Functions that may fail return NULL or -1 with a Python error set, unless they say otherwise.
 */
#ifndef FLAMBEAU_CAPTURE_CORE_H
#define FLAMBEAU_CAPTURE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "flambeau_capture._core is written for CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "flambeau_capture._core does not support free-threaded builds"
#endif

#define NOINLINE __attribute__((noinline))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- tensor.c ---- */

/* Sizes and strides that are symbolic, and so not compared. */
#define ANY_SIZE INT64_MIN

typedef struct {
    PyTypeObject *type; /* borrowed: the program's payload tuple holds it */
    uint64_t keys;      /* the dispatch key set, whole */
    uint32_t kind;      /* dtype, device type and device index, as TensorImpl packs them */
    int requires_grad;
    int64_t ndim;
    int64_t extents[]; /* ndim sizes, then ndim strides */
} TensorFacts;

/* From (type, key set, kind word, requires_grad, sizes, strides); freed by PyMem_Free. */
TensorFacts *tensor_facts_new(PyObject *payload);
int tensor_matches(const TensorFacts *facts, PyObject *object);
/* A tensor's size or stride; the caller has matched a TENSOR guard, which makes `object` a tensor with that dimension. */
int tensor_extent(PyObject *object, int64_t dim, int stride, int64_t *extent);
/* The StorageImpl behind a tensor; NULL for other objects. */
const void *tensor_storage(PyObject *object);
/* Whether torch's thread-local state equals the words that torch_state() gave. */
int torch_state_matches(PyObject *payload);
extern PyMethodDef tensor_methods[];

/* ---- program.c ---- */

typedef struct Program Program;
extern PyTypeObject Program_Type;

#define GUARDS_HOLD (-1)
#define MAX_REGISTERS 60000

/* Whether the program is for calls with this many bound arguments; it must not be run on others. */
int program_takes(const Program *program, Py_ssize_t count);
/* Number of input registers: what `program_run` writes to `inputs`. */
Py_ssize_t program_input_count(const Program *program);
/* Whether the inputs are the bound arguments themselves, in order, so that `inputs` need not be filled. */
int program_passes_arguments(const Program *program, Py_ssize_t count);
/* Runs the program on bound arguments.  GUARDS_HOLD, with new references in `inputs` (may be NULL), or the index of the guard that failed.
 * Never leaves an error set. */
Py_ssize_t program_run(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs);
extern PyMethodDef program_functions[];

/* ---- compiled.c ---- */

extern PyTypeObject Entry_Type;
extern PyTypeObject Compiled_Type;

/* What became of a call that was to be served. */
typedef enum {
    NOT_TAKEN = 0,      /* a guard failed, or the function itself is to be run */
    SERVED = 1,         /* *result is set (NULL: an error is set) */
    RUNS_EAGERLY = 2,   /* the function is to be run, and nothing that it calls is to be captured: a graph has raised and changed nothing, say */
} Service;

/* Serves a call of `function` with bound arguments. */
Service entry_serve(PyObject *entry, PyObject *function, PyObject *const *bound, Py_ssize_t count, PyObject **result);

extern PyMethodDef compiled_functions[];

/* A tuple of these objects; NULL with an exception. */
static inline PyObject *
tuple_of(PyObject *const *items, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    }
    return tuple;
}

/* ---- tail.c ---- */

extern PyTypeObject Tail_Type;

/* Have a handler (NULL: no matter) in force while a Tail's function runs; other values are left as they are. */
void tail_set_handler(PyObject *value, PyObject *handler);
/* The value of a suspended frame (steals `value`, which may be NULL): makes the calls that stand for it, one after another, at the same depth. */
PyObject *tail_run_to_end(PyObject *value);
/* As tail_run_to_end, with a handler (NULL: none) in force. */
PyObject *tail_run_under(PyObject *handler, PyObject *value);
/* The function itself is about to be called with these arguments, which are not read again: it may release them, where a Tail holds them. */
void tail_lend(PyObject *const *arguments);
extern PyMethodDef tail_functions[];

/* ---- traceback.c ---- */

/* Takes our own frames out of the traceback of the exception that is set.  With `code`, only those of a function of ours that has this code. */
void trim_raised(PyObject *code);

/* ---- hook.c ---- */

extern PyTypeObject FrameHandler_Type;

/* Puts a FrameHandler (NULL: none) in force in this thread; gives the former one, which hook_restore puts back. */
PyObject *hook_switch(PyObject *handler);
void hook_restore(PyObject *former);
int hook_init(PyObject *module);
extern PyMethodDef hook_methods[];

#endif
