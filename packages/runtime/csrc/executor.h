/* The executor's types, for what records and replays its calls. */
#ifndef FLAMBEAU_EXECUTOR_H
#define FLAMBEAU_EXECUTOR_H

#include "cuda.h"

/* How a slot holds its tensor. */
enum Hold { HOLD_NOTHING, HOLD_BORROWED, HOLD_HANDLE, HOLD_RAW, HOLD_OBJECT };

typedef struct {
    Handle handle;
    void *data;       /* data pointer, NULL until asked for; for HOLD_RAW the memory itself */
    PyObject *object; /* HOLD_BORROWED: the argument; HOLD_OBJECT: owned; HOLD_HANDLE: the wrapper if one was made (owned) */
    int hold;
} Slot;

typedef struct {
    int64_t input, dim, value; /* dim -1: the argument is the int */
} SymbolLoad;

typedef struct {
    int64_t offset; /* of a step in the code */
    const char *text;
} StepName;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *program, *objects, *outputs_ints;
    char *name;
    int64_t *code, *values, *postfix, *copies, *reserved, *symbols, *inputs, *outputs, *mutated;
    Py_ssize_t n_code, n_values, n_postfix, n_copies, n_reserved, n_symbols, n_inputs, n_outputs, n_mutated;
    Py_ssize_t n_slots, n_sizes; /* n_sizes: the symbols that are no elements of a generator's state */
    int below; /* exclude autograd and autocast while running */
    int ran;   /* it has been called before */
    PyObject *weakrefs;
    const char *title;    /* of its range in profilers, see profile_ranges.h */
    StepName *names;      /* of its steps' ranges */
    Py_ssize_t n_names;
    PyObject *names_kept; /* holds the texts */
} Executor;

typedef struct {
    const Executor *ex;
    Slot *slots;
    const int64_t *values;
    int64_t *scratch; /* where `values` are the call's own */
    PyThreadState *released; /* non-NULL while the GIL is not held */
    const int64_t *failed;   /* a step whose call without Python objects has failed, until the one through Python is made */
    void *stream;            /* of `stream_device`, asked for at the first launch */
    int32_t stream_device;
    void *range;             /* of the present step, where a profiler listens */
    PyObject *launches;      /* while the call is recorded: a list that takes what each kernel was launched with */
} Call;

extern PyTypeObject ExecutorType;

PyObject *executor_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

/* A call with the items of a list, which it empties. */
PyObject *executor_spend(PyObject *self, PyObject *list);

/* Read the symbols of a call from its arguments into `values`, one for each symbol; 0, or -1 with an exception set. */
int executor_read_symbols(const Executor *ex, PyObject *const *args, int64_t *values);

/* Fill a call's own table of values: the symbols of its arguments, and what is computed from them; 0, or -1 with an exception
 * set. */
int executor_fill_values(const Executor *ex, PyObject *const *args, int64_t *values);

/* Say that an argument must be a tensor; -1. */
int executor_expected_tensor(const Executor *ex, Py_ssize_t position, PyObject *arg);

/* What torch's C interface could not allocate, asked for through Python: an uninitialised tensor, by `sizes` and the strides
 * behind them.  0, or -1 with eager's exception set. */
int executor_allocate_again(int64_t ndim, const int64_t *sizes, int64_t dtype, int64_t device_type, int64_t device, Handle *made);

/* A new int64 tensor of the CPU with these words, `ndim` 1, or 0 for one word; NULL if there is no memory. */
Handle executor_make_words(int64_t ndim, int64_t count, const int64_t *words);

/* Inference tensors may be written to in inference mode only, as in eager; asked before anything is written.  The number of
 * mutated inputs that are such, which have no version to bump, or -1 with an exception set. */
int executor_count_unversioned(const Executor *ex, PyObject *const *args);

/* Bump the version counters of mutated inputs; `unversioned` is what executor_count_unversioned said. */
int executor_bump_versions(const Executor *ex, PyObject *const *args, int unversioned);

/* A copy of packed int64 values, to be freed by PyMem_Free, and their number; NULL with an exception set. */
int64_t *executor_copy_ints(PyObject *bytes, Py_ssize_t *n);

#endif
