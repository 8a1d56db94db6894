/* The executor: runs a Program with no Python between kernels.
 *
 * `Executor(code, objects, ...)` holds a Program that Python has assembled (c_executor.py) into
 *   - `values`: an int64 table of every size, stride, offset and launch argument; constants stand in it already, and a call
 *     with symbolic sizes works on a copy, filled by reading symbols from the inputs and running the size expressions;
 *   - `code`: a flat int64 array, one opcode and its operands after another;
 *   - `objects`: Python objects that steps refer to (operators, argument trees, messages).
 * An Executor is immutable once made; what a call needs stands on that call's C stack, so any number of threads may call it.
 */
#include "dispatch.h"
#include "large_memory.h"
#include "operator_calls.h"
#include "profile_ranges.h"
#include "slots.h"
#include "warnings.h"

#include <structmember.h>

enum Opcode {
    OP_ALLOCATE,    /* slot dtype device_type device_index ndim sizes */
    OP_RAW,         /* slot nbytes: CPU memory that only kernels see, with no tensor around it */
    OP_VIEW,        /* slot base ndim sizes offset: offset counts from the base's own start */
    OP_POINTER,     /* slot base bytes: an address that many bytes behind the base's, which outlives it; no tensor */
    OP_MOVE,        /* slot from: the same memory under a new name */
    OP_LAUNCH,      /* function n_buffers ints message(-1) buffer...: with a message, the kernel returns a status to check */
    OP_LAUNCH_GPU,  /* kernel n_buffers n_ints ints grid buffer...: kernel is an object, grid three values */
    OP_MATMUL,      /* own_length call_length function n_tensors scaled alpha beta tensor...: an out= matrix product of the C interface */
    OP_DISPATCH,    /* own_length call_length, then see dispatch.h: an operator, called through torch's dispatcher */
                    /* Both are followed by the OP_CALL that makes the same call through Python.  It is made where they fail,
                     * and raises eager's exception: the C interface hands over no types. */
    OP_CALL,        /* operator positional keywords(-1) message n_outputs output(-1)... */
    OP_FREE,        /* slot */
    OP_RELEASE_GIL, /* until the next OP_TAKE_GIL */
    OP_TAKE_GIL,
    OP_RESERVE,     /* function slot increment seed offset number: a function of the increment returns the two words */
    OP_RETURN,
    OP_SKIP,        /* own_length ...: what an OP_MATMUL or OP_DISPATCH becomes that failed where its OP_CALL succeeded */
};

enum { OUT_NONE = -1, OUT_SLOT = 0, OUT_INT = 1 };
enum { STACK_SLOTS = 64, STACK_VALUES = 512, MAX_BUFFERS = 512, GUARD_BYTES = 64 };

/* 1. Errors */

static int take_gil(Call *call)
{
    if (call->released != NULL) {
        PyEval_RestoreThread(call->released);
        call->released = NULL;
    }
    return 0;
}

static int shim_failed(Call *call, const char *what)
{
    const char *why = torch_api.exception_what ? torch_api.exception_what() : NULL;
    char text[600];
    snprintf(text, sizeof text, "%s", why && why[0] ? why : "torch reported the cause on standard error");
    take_gil(call);
    PyErr_Format(PyExc_RuntimeError, "%s in %s: %s", what, call->ex->name, text);
    return -1;
}

/* 2. Allocation */

int executor_allocate_again(int64_t ndim, const int64_t *sizes, int64_t dtype, int64_t device_type, int64_t device, Handle *made)
{
    PyObject *module = PyImport_ImportModule("flambeau_runtime.allocation"), *tensor = NULL, *ints = PyTuple_New(2 * ndim);
    for (int64_t i = 0; ints != NULL && i < 2 * ndim; i++) {
        PyObject *item = PyLong_FromLongLong(sizes[i]);
        if (item == NULL) Py_CLEAR(ints);
        else PyTuple_SET_ITEM(ints, i, item);
    }
    if (module != NULL && ints != NULL)
        tensor = PyObject_CallMethod(module, "allocate_again", "OLLL", ints, (long long)dtype, (long long)device_type, (long long)device);
    if (tensor != NULL && torch_api.reinterpret(handle_of(tensor), ndim, sizes, sizes + ndim, 0, made)) PyErr_NoMemory();
    Py_XDECREF(tensor);
    Py_XDECREF(ints);
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : 0;
}

Handle executor_make_words(int64_t ndim, int64_t count, const int64_t *words)
{
    const int64_t stride = 1;
    Handle made = NULL;
    void *data;
    if (torch_api.empty_strided(ndim, &count, &stride, 4 /* int64 */, 0 /* CPU */, 0, &made)) return NULL;
    if (torch_api.get_data_ptr(made, &data)) {
        torch_api.delete_tensor(made);
        return NULL;
    }
    memcpy(data, words, count * sizeof *words);
    return made;
}

/* 3. Steps */

/* pc points at: slot base ndim sizes offset */
static int make_view(Call *call, const int64_t *pc)
{
    Slot *base = &call->slots[pc[1]];
    const int64_t *sizes = call->values + pc[3], ndim = pc[2];
    Handle made = NULL;
    if (torch_api.reinterpret(base->handle, ndim, sizes, sizes + ndim, call->values[pc[4]], &made))
        return shim_failed(call, "making a view");
    call->slots[pc[0]] = (Slot){.handle = made, .hold = HOLD_HANDLE};
    return 0;
}

typedef void (*Kernel)(void *const *, const int64_t *);
typedef int64_t (*CheckedKernel)(void *const *, const int64_t *);

/* pc points at: function n_buffers ints message buffer... */
static int launch(Call *call, const int64_t *pc)
{
    void *buffers[MAX_BUFFERS];
    for (int64_t i = 0; i < pc[1]; i++)
        if (data_of(&call->slots[pc[4 + i]], &buffers[i])) return shim_failed(call, "reading a data pointer");
    const int64_t *ints = call->values + pc[2];
    if (pc[3] < 0) {
        ((Kernel)(uintptr_t)pc[0])(buffers, ints);
    } else if (((CheckedKernel)(uintptr_t)pc[0])(buffers, ints)) {
        take_gil(call);
        PyErr_SetObject(PyExc_IndexError, PyTuple_GET_ITEM(call->ex->objects, pc[3]));
        return -1;
    }
    return 0;
}

static void take_gil_for(void *call) { take_gil(call); }

/* Append (node, kernel, grid, pointers, ints) of the launch that the stream has just captured, or None for an empty
 * one. */
static int note_launch(Call *call, GpuKernel *kernel, void *const *pointers, const int64_t *pc)
{
    const int64_t *ints = call->values + pc[3], *grid = call->values + pc[4];
    PyObject *note = Py_None;
    if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) {
        Py_INCREF(note);
    } else {
        void *node = cuda_last_node(call->stream);
        if (node == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a launch could not be found in the captured graph");
            return -1;
        }
        note = Py_BuildValue("(KO(LLL)y#y#)", (unsigned long long)(uintptr_t)node, (PyObject *)kernel, (long long)grid[0],
                             (long long)grid[1], (long long)grid[2], (const char *)pointers, (Py_ssize_t)(pc[1] * sizeof *pointers),
                             (const char *)ints, (Py_ssize_t)(pc[2] * sizeof *ints));
    }
    const int status = note == NULL ? -1 : PyList_Append(call->launches, note);
    Py_XDECREF(note);
    return status;
}

/* pc points at: kernel n_buffers n_ints ints grid buffer... */
static int launch_gpu(Call *call, const int64_t *pc)
{
    GpuKernel *kernel = (GpuKernel *)PyTuple_GET_ITEM(call->ex->objects, pc[0]);
    void *buffers[MAX_BUFFERS];
    for (int64_t i = 0; i < pc[1]; i++)
        if (data_of(&call->slots[pc[5 + i]], &buffers[i])) return shim_failed(call, "reading a data pointer");
    if (call->stream_device != kernel->device) {
        if (cuda_stream(kernel->device, &call->stream)) return shim_failed(call, "asking for the present stream");
        call->stream_device = kernel->device;
    }
    if (cuda_launch(kernel, buffers, pc[1], call->values + pc[3], pc[2], call->values + pc[4], call->stream, take_gil_for, call))
        return -1;
    return call->launches == NULL ? 0 : note_launch(call, kernel, buffers, pc);
}

/* pc points at: function n_tensors scaled beta alpha tensor... */
static bool matmul(Call *call, const int64_t *pc)
{
    Handle t[4] = {0};
    double beta, alpha;
    memcpy(&beta, &pc[3], sizeof beta);
    memcpy(&alpha, &pc[4], sizeof alpha);
    for (int64_t i = 0; i < pc[1]; i++) t[i] = call->slots[pc[5 + i]].handle;
    const uintptr_t f = (uintptr_t)pc[0];
    return pc[2] ? !((int32_t(*)(Handle, Handle, Handle, Handle, double, double))f)(t[0], t[1], t[2], t[3], beta, alpha)
                 : !((int32_t(*)(Handle, Handle, Handle))f)(t[0], t[1], t[2]);
}

/* pc points at: function slot increment seed offset number */
static int reserve(Call *call, const int64_t *pc)
{
    const Executor *ex = call->ex;
    PyObject *words = PyObject_CallFunction(PyTuple_GET_ITEM(ex->objects, pc[0]), "L", (long long)call->values[pc[2]]);
    long long seed, offset;
    const int failed = words == NULL || !PyArg_ParseTuple(words, "LL", &seed, &offset);
    Py_XDECREF(words);
    if (failed) return -1;
    const int64_t state[2] = {seed, offset};
    call->scratch[pc[3]] = seed;
    call->scratch[pc[4]] = offset;
    for (int64_t i = ex->reserved[pc[5]]; i < ex->reserved[pc[5] + 1]; i += 2)
        call->scratch[ex->copies[i]] = call->scratch[ex->copies[i + 1]];
    Handle made = executor_make_words(1, 2, state);
    if (made == NULL) return shim_failed(call, "allocating");
    call->slots[pc[1]] = (Slot){.handle = made, .hold = HOLD_HANDLE};
    return 0;
}

/* `profiled` is a constant in each caller, so plain calls have no code for ranges. */
static inline __attribute__((always_inline)) int run_steps(Call *call, const bool profiled)
{
    const int64_t *pc = call->ex->code;
    Slot *slots = call->slots;
    for (;;) {
        if (profiled) {
            const char *name = profile_name_of(call->ex, pc);
            profile_end(call->range);
            call->range = name == NULL ? NULL : profile_begin(name);
        }
        const int64_t opcode = __atomic_load_n(pc++, __ATOMIC_RELAXED); /* another thread may write an OP_SKIP */
        switch (opcode) {
            case OP_ALLOCATE: {
                const int64_t *sizes = call->values + pc[5];
                Handle made = NULL;
                if (new_tensor(pc[4], sizes, (int32_t)pc[1], (int32_t)pc[2], (int32_t)pc[3], call->ex->ran, &made)) {
                    take_gil(call);
                    if (executor_allocate_again(pc[4], sizes, pc[1], pc[2], pc[3], &made)) return -1;
                }
                slots[pc[0]] = (Slot){.handle = made, .hold = HOLD_HANDLE};
                pc += 6;
                break;
            }
            case OP_RAW: {
                const int64_t bytes[2] = {call->values[pc[1]], 1};
                Handle made = NULL;
                void *memory = NULL;
                if (bytes[0] >= LARGE_ELEMENTS ? large_memory_new(1, bytes, 0 /* uint8 */, call->ex->ran, &made)
                                               : posix_memalign(&memory, 64, bytes[0] > 0 ? (size_t)bytes[0] : 1))
                    return take_gil(call), PyErr_NoMemory(), -1;
                slots[pc[0]] = (Slot){.handle = made, .data = memory, .hold = made != NULL ? HOLD_HANDLE : HOLD_RAW};
                pc += 2;
                break;
            }
            case OP_VIEW:
                if (make_view(call, pc)) return -1;
                pc += 5;
                break;
            case OP_POINTER: {
                void *base;
                if (data_of(&slots[pc[1]], &base)) return shim_failed(call, "reading a data pointer");
                slots[pc[0]] = (Slot){.data = (char *)base + pc[2]};
                pc += 3;
                break;
            }
            case OP_MOVE:
                slots[pc[0]] = slots[pc[1]];
                memset(&slots[pc[1]], 0, sizeof *slots);
                pc += 2;
                break;
            case OP_LAUNCH:
                if (launch(call, pc)) return -1;
                pc += 4 + pc[1];
                break;
            case OP_LAUNCH_GPU:
                if (launch_gpu(call, pc)) return -1;
                pc += 5 + pc[1];
                break;
            case OP_MATMUL:
            case OP_DISPATCH: {
                const bool done = opcode == OP_MATMUL ? matmul(call, pc + 2) : dispatch_call(call, pc + 2);
                if (!done) {
                    take_gil(call);
                    call->failed = pc - 1;
                }
                pc += done ? pc[0] + pc[1] : pc[0];
                break;
            }
            case OP_SKIP:
                take_gil(call);
                pc += pc[0];
                break;
            case OP_CALL:
                if (operator_call(call, pc)) return -1;
                pc += 5 + pc[4];
                if (call->failed != NULL) {
                    __atomic_store_n((int64_t *)call->failed, (int64_t)OP_SKIP, __ATOMIC_RELAXED);
                    call->failed = NULL;
                }
                break;
            case OP_FREE:
                if (call->released != NULL && drop_needs_gil(&slots[pc[0]])) {
                    take_gil(call);
                    drop(&slots[pc[0]]);
                    call->released = PyEval_SaveThread();
                } else {
                    drop(&slots[pc[0]]);
                }
                pc += 1;
                break;
            case OP_RELEASE_GIL:
                if (call->launches == NULL) call->released = PyEval_SaveThread();
                break;
            case OP_TAKE_GIL: take_gil(call); break;
            case OP_RESERVE:
                if (reserve(call, pc)) return -1;
                pc += 6;
                break;
            default: return take_gil(call);
        }
    }
}

static int run_plainly(Call *call) { return run_steps(call, false); }

static Py_NO_INLINE int run_profiled(Call *call)
{
    void *range = profile_begin(call->ex->title);
    const int failed = run_steps(call, true);
    profile_end(call->range);
    profile_end(range);
    return failed;
}

static int run_code(Call *call) { return profile_active() ? run_profiled(call) : run_plainly(call); }

/* 4. A call */

/* End what run_below began with the warnings: -1 with an exception set if the run failed or a warning is an exception. */
static int end_warnings(void *buffer, int failed)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!flush_warnings(torch_api.destroy_warnings, buffer)) {
        PyErr_Restore(type, value, traceback);
        return failed;
    }
    if (!failed) return -1;
    PyErr_Clear(); /* the exception of the run stands */
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Run the code of a Program that calls operators: below autograd and autocast, with torch's warnings going to Python. */
static int run_below(Call *call)
{
    _Alignas(16) char guard[GUARD_BYTES], warnings[WARNING_BUFFER_BYTES];
    torch_api.exclude_enter(guard, torch_api.below_keys);
    if (torch_api.buffer_warnings != NULL) torch_api.buffer_warnings(warnings);
    int failed = run_code(call);
    if (torch_api.buffer_warnings != NULL) failed = end_warnings(warnings, failed);
    torch_api.exclude_exit(guard);
    return failed;
}

static PyObject *collect_outputs(Call *call)
{
    const Executor *ex = call->ex;
    PyObject *result = PyTuple_New(ex->n_outputs / 2);
    for (Py_ssize_t i = 0; result != NULL && i < ex->n_outputs; i += 2) {
        const int64_t at = ex->outputs[i + 1];
        PyObject *item;
        if (ex->outputs[i] == OUT_SLOT) item = object_of(&call->slots[at]);
        else if (ex->outputs[i] == OUT_INT) item = PyLong_FromLongLong(call->values[at]);
        else item = Py_NewRef(Py_None);
        if (item == NULL) Py_CLEAR(result);
        else PyTuple_SET_ITEM(result, i / 2, item);
    }
    return result;
}

static int bind_inputs(const Executor *ex, PyObject *const *args, Slot *slots)
{
    for (Py_ssize_t i = 0; i < ex->n_inputs; i++) {
        if (ex->inputs[i] < 0) continue; /* an int, or a tensor that no step reads */
        if (!PyObject_TypeCheck(args[i], torch_api.tensor_type)) return executor_expected_tensor(ex, i, args[i]);
        slots[ex->inputs[i]] = (Slot){.handle = handle_of(args[i]), .object = args[i], .hold = HOLD_BORROWED};
    }
    return 0;
}

/* Whether a callable of torch answers True; -1 with an exception set. */
static int asks(PyObject *question, PyObject *tensor)
{
    PyObject *answer = tensor ? PyObject_CallOneArg(question, tensor) : PyObject_CallNoArgs(question);
    if (answer == NULL) return -1;
    const int is_true = answer == Py_True;
    Py_DECREF(answer);
    return is_true;
}

int executor_count_unversioned(const Executor *ex, PyObject *const *args)
{
    int count = 0;
    for (Py_ssize_t i = 0; i < ex->n_mutated; i++) {
        const int64_t at = ex->mutated[i];
        const int is_inference = asks(torch_api.is_inference, args[at < 0 ? ~at : at]);
        if (is_inference < 0) return -1;
        count += is_inference;
    }
    if (count == 0) return 0;
    const int allowed = asks(torch_api.inference_mode, NULL);
    if (allowed == 0)
        PyErr_Format(PyExc_RuntimeError, "%s mutates an inference tensor outside of inference mode; give it a clone", ex->name);
    return allowed > 0 ? count : -1;
}

int executor_bump_versions(const Executor *ex, PyObject *const *args, int unversioned)
{
    for (Py_ssize_t i = 0; i < ex->n_mutated; i++) {
        if (ex->mutated[i] < 0) continue; /* the program says that its counter stays */
        PyObject *arg = args[ex->mutated[i]];
        const int skip = unversioned ? asks(torch_api.is_inference, arg) : 0;
        if (skip < 0) return -1;
        if (!skip) torch_api.bump_version(handle_of(arg));
    }
    return 0;
}

/* Make the slots of inputs own the references that `args` held, so that a Free drops the last one; these args become NULL. */
static void take_inputs(const Executor *ex, PyObject **args, Slot *slots)
{
    for (Py_ssize_t i = 0; i < ex->n_inputs; i++) {
        if (ex->inputs[i] < 0) continue;
        slots[ex->inputs[i]].hold = HOLD_OBJECT;
        args[i] = NULL;
    }
}

/* `launches`: see Call; while a call is recorded nothing runs, so no version is bumped. `spent`: owned references to the
 * arguments, to be dropped as the program frees its inputs, or NULL; such a program mutates no input. */
static PyObject *run(Executor *ex, PyObject *const *args, Slot *slots, int64_t *scratch, PyObject *launches, PyObject **spent)
{
    Call call = {.ex = ex, .slots = slots, .values = ex->values, .stream_device = -1, .launches = launches};
    memset(slots, 0, ex->n_slots * sizeof *slots);
    if (bind_inputs(ex, args, slots)) return NULL;
    const int unversioned = executor_count_unversioned(ex, args);
    if (unversioned < 0) return NULL;
    if (ex->n_symbols + ex->n_postfix > 0 || ex->n_reserved > 1) {
        if (executor_fill_values(ex, args, scratch)) return NULL;
        call.values = call.scratch = scratch;
    }
    if (spent != NULL) take_inputs(ex, spent, slots);
    int failed = ex->below ? run_below(&call) : run_code(&call);
    ex->ran = 1;
    if (!failed && launches == NULL) failed = executor_bump_versions(ex, args, unversioned);
    PyObject *result = failed ? NULL : collect_outputs(&call);
    for (Py_ssize_t i = 0; i < ex->n_slots; i++) drop(&slots[i]);
    return result;
}

/* Large programs take their scratch from the heap, in a function of its own so that small ones stay small on the C stack. */
static Py_NO_INLINE PyObject *run_large(Executor *ex, PyObject *const *args, PyObject *launches, PyObject **spent)
{
    Slot *slots = PyMem_Malloc(ex->n_slots * sizeof(Slot) + 1);
    int64_t *scratch = PyMem_Malloc(ex->n_values * sizeof(int64_t) + 1);
    PyObject *result = slots && scratch ? run(ex, args, slots, scratch, launches, spent) : PyErr_NoMemory();
    PyMem_Free(slots);
    PyMem_Free(scratch);
    return result;
}

PyObject *executor_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Executor *ex = (Executor *)self;
    const Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != ex->n_inputs || (kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd positional arguments, got %zd%s", ex->name, ex->n_inputs, nargs,
                     kwnames && PyTuple_GET_SIZE(kwnames) ? " and keywords" : "");
        return NULL;
    }
    if (ex->n_slots > STACK_SLOTS || ex->n_values > STACK_VALUES) return run_large(ex, args, NULL, NULL);
    Slot slots[STACK_SLOTS];
    int64_t scratch[STACK_VALUES];
    return run(ex, args, slots, scratch, NULL, NULL);
}

/* executor.spend(list) -> outputs: a call with the items of the list, which is empty afterwards. Nobody else holding them,
 * inputs go as the program frees them. */
static PyObject *spend(PyObject *self, PyObject *list, PyObject *launches)
{
    Executor *ex = (Executor *)self;
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != ex->n_inputs)
        return PyErr_Format(PyExc_TypeError, "%s takes a list of %zd arguments", ex->name, ex->n_inputs);
    if (ex->n_mutated > 0) return PyErr_Format(PyExc_ValueError, "%s mutates its inputs, which cannot be spent", ex->name);
    PyObject **args = PyMem_Malloc(ex->n_inputs * sizeof *args + 1);
    if (args == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < ex->n_inputs; i++) args[i] = Py_NewRef(PyList_GET_ITEM(list, i));
    PyObject *result = PyList_SetSlice(list, 0, ex->n_inputs, NULL) ? NULL : run_large(ex, args, launches, args);
    for (Py_ssize_t i = 0; i < ex->n_inputs; i++) Py_XDECREF(args[i]);
    PyMem_Free(args);
    return result;
}

PyObject *executor_spend(PyObject *self, PyObject *list) { return spend(self, list, NULL); }

/* executor.trace(args) -> (outputs, launches): a call while its stream is being captured; the items of a list are spent. */
static PyObject *executor_trace(PyObject *self, PyObject *args)
{
    Executor *ex = (Executor *)self;
    if (!PyList_Check(args) && (!PyTuple_Check(args) || PyTuple_GET_SIZE(args) != ex->n_inputs))
        return PyErr_Format(PyExc_TypeError, "%s takes a list or tuple of %zd arguments", ex->name, ex->n_inputs);
    PyObject *launches = PyList_New(0), *outputs = NULL;
    if (launches != NULL) outputs = PyList_Check(args) ? spend(self, args, launches) : run_large(ex, &PyTuple_GET_ITEM(args, 0), launches, NULL);
    if (outputs != NULL) return Py_BuildValue("(NN)", outputs, launches);
    Py_XDECREF(launches);
    return NULL;
}

/* 5. The type */

int64_t *executor_copy_ints(PyObject *bytes, Py_ssize_t *n)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size)) return NULL;
    int64_t *made = PyMem_Malloc(size + 1);
    if (made == NULL) return (int64_t *)PyErr_NoMemory();
    memcpy(made, data, size);
    *n = size / (Py_ssize_t)sizeof(int64_t);
    return made;
}

static PyObject *executor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "program", "objects", "n_slots", "below", "code", "values", "postfix", "copies", "reserved", "symbols",
                            "inputs", "outputs", "mutated", "title", "names", NULL};
    const char *name;
    PyObject *program, *objects, *code, *values, *postfix, *copies, *reserved, *symbols, *inputs, *outputs, *mutated, *title, *step_names;
    Py_ssize_t n_slots;
    int below;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOO!npSSSSSSSSSUO!", names, &name, &program, &PyTuple_Type, &objects, &n_slots, &below,
                                     &code, &values, &postfix, &copies, &reserved, &symbols, &inputs, &outputs, &mutated, &title, &PyTuple_Type,
                                     &step_names))
        return NULL;
    if (!torch_api.ready) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C interface has not been found: call init first");
        return NULL;
    }
    Executor *self = (Executor *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = executor_vectorcall;
    self->program = Py_NewRef(program);
    self->objects = Py_NewRef(objects);
    self->n_slots = n_slots;
    self->below = below;
    self->name = PyMem_Malloc(strlen(name) + 1);
    if (self->name == NULL) goto failed;
    strcpy(self->name, name);
    if (!(self->code = executor_copy_ints(code, &self->n_code)) || !(self->values = executor_copy_ints(values, &self->n_values)) ||
        !(self->postfix = executor_copy_ints(postfix, &self->n_postfix)) || !(self->copies = executor_copy_ints(copies, &self->n_copies)) ||
        !(self->reserved = executor_copy_ints(reserved, &self->n_reserved)) ||
        !(self->symbols = executor_copy_ints(symbols, &self->n_symbols)) || !(self->inputs = executor_copy_ints(inputs, &self->n_inputs)) ||
        !(self->outputs = executor_copy_ints(outputs, &self->n_outputs)) || !(self->mutated = executor_copy_ints(mutated, &self->n_mutated)))
        goto failed;
    if (profile_names_init(self, title, step_names)) goto failed;
    while (3 * self->n_sizes < self->n_symbols && self->symbols[3 * self->n_sizes + 1] > -3) self->n_sizes++;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void executor_dealloc(PyObject *object)
{
    Executor *self = (Executor *)object;
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs(object);
    Py_XDECREF(self->program);
    Py_XDECREF(self->objects);
    int64_t *owned[] = {self->code, self->values, self->postfix, self->copies, self->reserved, self->symbols, self->inputs, self->outputs, self->mutated};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) PyMem_Free(owned[i]);
    PyMem_Free(self->name);
    profile_names_clear(self);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *executor_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<compiled program %s>", ((Executor *)object)->name);
}

static PyMemberDef executor_members[] = {
    {"program", T_OBJECT, offsetof(Executor, program), READONLY, "The Program this runs."},
    {NULL},
};

static PyMethodDef executor_methods[] = {
    {"trace", executor_trace, METH_O,
     "trace(args) -> (outputs, launches): run while the stream is being captured, spending the items of a list; for each kernel launch (node, kernel, grid, "
     "pointers, ints), None where its grid is empty."},
    {"spend", executor_spend, METH_O, "spend(list) -> outputs: a call with the items of a list, which it empties: inputs go after their last use."},
    {NULL},
};

PyTypeObject ExecutorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_runtime._core.Executor",
    .tp_doc = "A Program ready to run: executor(*tensors) -> tuple.",
    .tp_basicsize = sizeof(Executor),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Executor, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = executor_new,
    .tp_dealloc = executor_dealloc,
    .tp_repr = executor_repr,
    .tp_members = executor_members,
    .tp_methods = executor_methods,
    .tp_weaklistoffset = offsetof(Executor, weakrefs),
};
