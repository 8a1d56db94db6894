/* A Recording holds an executable CUDA graph and what has to be changed in it for a call.
 *
 * The memory that the graph's nodes touch is of these kinds:
 *   - memory of the recording's own (intermediates, buffers that inputs are copied to): never changes;
 *   - an input: at the address it was recorded with (FIXED), patched into the nodes of our kernels (PATCHED), or copied to a
 *     buffer by a copy node whose source is patched (STAGED);
 *   - an input that is one word of the CPU (WORD): fill nodes write it to memory of the recording's own;
 *   - an output that is allocated for each call: patched into the nodes of our kernels, or filled by a copy node whose
 *     destination is patched;
 *   - an output in place (PINNED): always at the same address, handed out again only when nobody holds it any more, nor what
 *     another recording hands out in the same memory (watch); a stream that reads it, as the program has said, is waited for.
 * Kernels that draw random numbers are passed words of a generator's state: of states that are inputs, and of the state that the
 * call reserves once for all its draws.
 * A call changes what differs from the call before, launches, and makes the output tensors.  All of it happens under the GIL.
 */
#include "recording.h"

#include "profile_ranges.h"

#include <string.h>
#include <structmember.h>

enum InputKind { INPUT_UNUSED, INPUT_FIXED, INPUT_PATCHED, INPUT_STAGED, INPUT_WORD };
enum OutputKind { OUTPUT_NONE, OUTPUT_INT, OUTPUT_ARGUMENT, OUTPUT_VIEW_OF_ARGUMENT, OUTPUT_FRESH, OUTPUT_WHOLE, OUTPUT_PINNED,
                  OUTPUT_STATE, OUTPUT_WORD };
enum { MANY = 64 };

typedef struct {
    enum InputKind kind;
    char *address; /* as the executable graph has it */
    Py_ssize_t first_use, end_use;
} Memory;

typedef struct {
    int64_t dtype, ndim;
    const int64_t *sizes; /* sizes, then strides */
} Layout;

typedef struct {
    Py_ssize_t site, argument;
    int64_t delta; /* bytes from the memory's address */
} Use;

/* An argument of a kernel that is a word of a generator's state. */
typedef struct {
    Py_ssize_t site, argument, word;
} Draw;

/* A launch of one of our kernels with pointers that change. */
typedef struct {
    void *node;
    GpuKernel *kernel; /* kept alive by `keep` */
    int64_t grid[3];
    Py_ssize_t n_pointers, n_ints;
    void **pointers;
    int64_t *ints;
    int changed;
} Site;

typedef struct {
    void *node;
    CopyNodeParams params;
    Py_ssize_t memory;
    int is_destination, changed;
} Copy;

/* An input that fill nodes write, half by half. */
typedef struct {
    Py_ssize_t input;
    void *nodes[2];
    FillNodeParams params[2];
    int64_t value; /* as the executable graph has it */
    int changed;
} Word;

typedef struct {
    Handle tensor; /* kept alive by `keep` */
    void *address;
    uint32_t own_uses;
} Pinned;

typedef struct {
    enum OutputKind kind;
    Py_ssize_t at; /* the input, the fresh memory, the pinned tensor or the draw */
    int64_t value, offset, ndim;
    const int64_t *sizes;
} Output;

struct Recording {
    PyObject_HEAD
    Executor *executor;
    PyObject *keep;   /* the graph, the kernels and the pinned tensors */
    PyObject *settings; /* of libraries, as they were: a tuple */
    PyObject *replay; /* launches the graph where library calls draw random numbers; else NULL */
    PyObject *reserve; /* returns seed and offset that the draws count from; NULL if nothing draws */
    PyObject *before; /* is called once, before the next replay; else NULL */
    void *exec, *stream, *context;
    int32_t device;
    int replaying, spends; /* `spends`: a replay overwrites inputs */
    int64_t hits;
    Py_ssize_t n_inputs, n_fresh, n_symbols, n_sites, n_uses, n_copies, n_pinned, n_outputs;
    Py_ssize_t n_elements, n_reserved, n_draws, n_given;
    Word *given;
    int64_t *words; /* elements of states that are inputs, then seed and offset of each draw */
    int64_t *offsets;
    Draw *draws;
    int64_t *symbols, *fresh_ints, *output_ints;
    Memory *memories; /* inputs, then fresh ones */
    Layout *fresh;
    Site *sites;
    Use *uses;
    Copy *copies;
    Pinned *pinned;
    Output *outputs;
};

/* 1. Whether it serves a call */

enum Match recording_match(const Recording *r, PyObject *const *args, const void *stream, const int64_t *symbols,
                           PyObject *settings, int spending)
{
    if (r->spends && !spending) return MATCH_OTHER;
    if (stream != r->stream || memcmp(symbols, r->symbols, r->n_symbols * sizeof *symbols) != 0) return MATCH_OTHER;
    const int same = PyObject_RichCompareBool(settings, r->settings, Py_EQ);
    if (same < 0) PyErr_Clear();
    if (same <= 0) return MATCH_OTHER;
    for (Py_ssize_t i = 0; i < r->n_inputs; i++) {
        void *address;
        if (r->memories[i].kind == INPUT_UNUSED) continue;
        if (!PyObject_TypeCheck(args[i], torch_api.tensor_type)) return MATCH_OTHER;
        if (r->memories[i].kind != INPUT_FIXED) continue;
        if (torch_api.get_data_ptr(handle_of(args[i]), &address) || address != r->memories[i].address) return MATCH_MOVED;
    }
    if (r->replaying) return MATCH_HELD;
    for (Py_ssize_t i = 0; i < r->n_pinned; i++) {
        void *address; /* it moves if a caller resizes the storage of an output */
        if (storage_use_count(r->pinned[i].tensor) != r->pinned[i].own_uses) return MATCH_HELD;
        if (torch_api.get_data_ptr(r->pinned[i].tensor, &address) || address != r->pinned[i].address) return MATCH_HELD;
    }
    return MATCH;
}

/* 2. Changing the graph */

static void move(Recording *r, Py_ssize_t memory, char *address)
{
    Memory *moved = &r->memories[memory];
    if (moved->address == address) return;
    moved->address = address;
    for (Py_ssize_t i = moved->first_use; i < moved->end_use; i++) {
        Site *site = &r->sites[r->uses[i].site];
        site->pointers[r->uses[i].argument] = address + r->uses[i].delta;
        site->changed = 1;
    }
    for (Py_ssize_t i = 0; i < r->n_copies; i++) {
        Copy *copy = &r->copies[i];
        if (copy->memory != memory) continue;
        *(copy->is_destination ? &copy->params.destination.device : &copy->params.source.device) = (uint64_t)(uintptr_t)address;
        copy->changed = 1;
    }
}

static int patch_site(const Recording *r, Site *site)
{
    void *arguments[MAX_ARGUMENTS + HIDDEN_ARGUMENTS];
    const int variant = cuda_variant(site->pointers, site->n_pointers);
    GpuKernel *kernel = site->kernel;
    if (kernel->function[variant] == NULL && cuda_load_unaligned(kernel)) return -1;
    cuda_arguments(site->pointers, site->n_pointers, site->ints, site->n_ints, arguments);
    const KernelNodeParams params = {
        .function = kernel->function[variant],
        .grid = {(unsigned)site->grid[0], (unsigned)site->grid[1], (unsigned)site->grid[2]},
        .block = {32 * kernel->warps, 1, 1},
        .shared = kernel->shared[variant],
        .arguments = arguments,
    };
    const int status = cuda_driver.set_kernel_node(r->exec, site->node, &params);
    return status ? cuda_failed(status, "changing a kernel's arguments in a recorded graph") : 0;
}

static int patch(Recording *r)
{
    for (Py_ssize_t i = 0; i < r->n_sites; i++) {
        if (!r->sites[i].changed) continue;
        if (patch_site(r, &r->sites[i])) return -1;
        r->sites[i].changed = 0;
    }
    for (Py_ssize_t i = 0; i < r->n_copies; i++) {
        Copy *copy = &r->copies[i];
        if (!copy->changed) continue;
        const int status = cuda_driver.set_copy_node(r->exec, copy->node, &copy->params, r->context);
        if (status) return cuda_failed(status, "changing a copy in a recorded graph");
        copy->changed = 0;
    }
    for (Py_ssize_t i = 0; i < r->n_given; i++) {
        Word *word = &r->given[i];
        for (int half = 0; word->changed && half < 2; half++) {
            word->params[half].value = (unsigned int)((uint64_t)word->value >> 32 * half);
            const int status = cuda_driver.set_fill_node(r->exec, word->nodes[half], &word->params[half], r->context);
            if (status) return cuda_failed(status, "changing a fill in a recorded graph");
        }
        word->changed = 0;
    }
    return 0;
}

/* 3. A call */

static int move_inputs(Recording *r, PyObject *const *args)
{
    for (Py_ssize_t i = 0; i < r->n_inputs; i++) {
        void *address;
        if (r->memories[i].kind != INPUT_PATCHED && r->memories[i].kind != INPUT_STAGED) continue;
        if (torch_api.get_data_ptr(handle_of(args[i]), &address)) {
            PyErr_Format(PyExc_RuntimeError, "argument %zd of %s has no memory", i, r->executor->name);
            return -1;
        }
        move(r, i, address);
    }
    for (Py_ssize_t i = 0; i < r->n_given; i++) {
        Word *word = &r->given[i];
        void *address = NULL;
        if (torch_api.get_data_ptr(handle_of(args[word->input]), &address) || address == NULL) {
            PyErr_Format(PyExc_RuntimeError, "argument %zd of %s has no memory", word->input, r->executor->name);
            return -1;
        }
        const int64_t value = *(const int64_t *)address;
        word->changed |= value != word->value;
        word->value = value;
    }
    return 0;
}

/* Handles of the memory that this call's outputs get, NULL where it was not reached. */
static int allocate(Recording *r, Handle *made)
{
    for (Py_ssize_t i = 0; i < r->n_fresh; i++) {
        const Layout *layout = &r->fresh[i];
        void *address;
        if (torch_api.empty_strided(layout->ndim, layout->sizes, layout->sizes + layout->ndim, (int32_t)layout->dtype, 1 /* CUDA */,
                                    r->device, &made[i]) &&
            executor_allocate_again(layout->ndim, layout->sizes, layout->dtype, 1 /* CUDA */, r->device, &made[i]))
            return -1;
        if (torch_api.get_data_ptr(made[i], &address)) {
            PyErr_Format(PyExc_RuntimeError, "an output of %s has no memory", r->executor->name);
            return -1;
        }
        move(r, r->n_inputs + i, address);
    }
    return 0;
}

/* Pass the kernels that draw the words of this call. */
static int draw(Recording *r, PyObject *const *args)
{
    const Executor *ex = r->executor;
    int64_t *words = r->words;
    if (r->n_elements > 0) {
        int64_t *symbols = PyMem_Malloc((ex->n_symbols / 3 + 1) * sizeof *symbols);
        if (symbols == NULL) return PyErr_NoMemory(), -1;
        const int failed = executor_read_symbols(ex, args, symbols);
        memcpy(words, symbols + ex->n_sizes, r->n_elements * sizeof *words);
        PyMem_Free(symbols);
        if (failed) return -1;
        words += r->n_elements;
    }
    if (r->reserve != NULL) {
        PyObject *state = PyObject_CallNoArgs(r->reserve);
        long long seed, offset;
        const int failed = state == NULL || !PyArg_ParseTuple(state, "LL", &seed, &offset);
        Py_XDECREF(state);
        if (failed) return -1;
        for (Py_ssize_t i = 0; i < r->n_reserved; i++) {
            *words++ = seed;
            *words++ = offset + r->offsets[i];
        }
    }
    for (Py_ssize_t i = 0; i < r->n_draws; i++) {
        Site *site = &r->sites[r->draws[i].site];
        site->ints[r->draws[i].argument] = r->words[r->draws[i].word];
        site->changed = 1;
    }
    return 0;
}

static int launch(Recording *r)
{
    if (r->replay != NULL) {
        PyObject *done = PyObject_CallNoArgs(r->replay);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    const int status = cuda_driver.graph_launch(r->exec, r->stream);
    return status ? cuda_failed(status, "launching a recorded graph") : 0;
}

static int patch_and_launch(Recording *r)
{
    void *current = NULL, *popped;
    cuda_driver.context_current(&current);
    const int foreign = current != r->context;
    if (foreign) cuda_driver.context_push(r->context);
    const int failed = patch(r) || launch(r);
    if (foreign) cuda_driver.context_pop(&popped);
    return failed ? -1 : 0;
}

/* The tensors of outputs that are views of memory, all before the first Python object is made: making one may run the
 * collector, and so another call of this recording, which must find pinned outputs held. */
static int make_views(Recording *r, PyObject *const *args, const Handle *fresh, Handle *made)
{
    for (Py_ssize_t i = 0; i < r->n_outputs; i++) {
        const Output *out = &r->outputs[i];
        Handle base;
        if (out->kind == OUTPUT_STATE) {
            if ((made[i] = executor_make_words(1, 2, r->words + r->n_elements + 2 * out->at)) == NULL) return PyErr_NoMemory(), -1;
            continue;
        }
        if (out->kind == OUTPUT_WORD) {
            if ((made[i] = executor_make_words(0, 1, r->words + r->n_elements + out->at)) == NULL) return PyErr_NoMemory(), -1;
            continue;
        }
        if (out->kind == OUTPUT_VIEW_OF_ARGUMENT) base = handle_of(args[out->at]);
        else if (out->kind == OUTPUT_FRESH) base = fresh[out->at];
        else if (out->kind == OUTPUT_PINNED) base = r->pinned[out->at].tensor;
        else continue;
        if (torch_api.reinterpret(base, out->ndim, out->sizes, out->sizes + out->ndim, out->offset, &made[i])) {
            PyErr_Format(PyExc_RuntimeError, "making an output of %s", r->executor->name);
            return -1;
        }
    }
    return 0;
}

static PyObject *wrap(Handle *handle)
{
    PyObject *wrapped = torch_api.wrap(*handle);
    torch_api.delete_tensor(*handle);
    *handle = NULL;
    return wrapped;
}

static PyObject *collect(Recording *r, PyObject *const *args, Handle *fresh, Handle *views)
{
    PyObject *result = PyTuple_New(r->n_outputs);
    for (Py_ssize_t i = 0; result != NULL && i < r->n_outputs; i++) {
        const Output *out = &r->outputs[i];
        PyObject *item;
        switch (out->kind) {
            case OUTPUT_NONE: item = Py_NewRef(Py_None); break;
            case OUTPUT_INT: item = PyLong_FromLongLong(out->value); break;
            case OUTPUT_ARGUMENT: item = Py_NewRef(args[out->at]); break;
            case OUTPUT_WHOLE: item = wrap(&fresh[out->at]); break;
            default: item = wrap(&views[i]);
        }
        if (item == NULL) Py_CLEAR(result);
        else PyTuple_SET_ITEM(result, i, item);
    }
    return result;
}

/* Have the stream wait for others that read what was handed out in place. */
static int call_before(Recording *r)
{
    PyObject *before = r->before, *done;
    if (before == NULL) return 0;
    r->before = NULL;
    done = before == Py_None ? Py_NewRef(Py_None) : PyObject_CallNoArgs(before);
    Py_DECREF(before);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *replay_with(Recording *r, PyObject *const *args, Handle *fresh, Handle *views)
{
    PyObject *result = NULL;
    /* Asking a tensor, building a kernel and drawing random numbers release the GIL: until the outputs in place are held,
     * every other call finds the recording in use. */
    r->replaying = 1;
    const int unversioned = executor_count_unversioned(r->executor, args);
    const int failed = unversioned < 0 || call_before(r) || move_inputs(r, args) || allocate(r, fresh) || draw(r, args) ||
                       patch_and_launch(r) || make_views(r, args, fresh, views);
    r->replaying = 0;
    if (!failed && !executor_bump_versions(r->executor, args, unversioned)) result = collect(r, args, fresh, views);
    for (Py_ssize_t i = 0; i < r->n_fresh; i++)
        if (fresh[i] != NULL) torch_api.delete_tensor(fresh[i]);
    for (Py_ssize_t i = 0; i < r->n_outputs; i++)
        if (views[i] != NULL) torch_api.delete_tensor(views[i]);
    return result;
}

PyObject *recording_replay(Recording *r, PyObject *const *args)
{
    Handle few[MANY];
    const Py_ssize_t count = r->n_fresh + r->n_outputs;
    Handle *handles = count <= MANY ? few : PyMem_Malloc(count * sizeof *handles);
    if (handles == NULL) return PyErr_NoMemory();
    memset(handles, 0, count * sizeof *handles);
    Py_INCREF(r);
    r->hits++;
    void *range = profile_active() ? profile_begin(r->executor->title) : NULL;
    PyObject *result = replay_with(r, args, handles, handles + r->n_fresh);
    profile_end(range);
    Py_DECREF(r);
    if (handles != few) PyMem_Free(handles);
    return result;
}

/* 4. The type */

static void *zeroed(Py_ssize_t count, size_t size)
{
    void *made = PyMem_Calloc(count + 1, size);
    return made == NULL ? PyErr_NoMemory() : made;
}

/* inputs: (kind, address)...; fresh: (address, dtype, ndim, sizes, strides)... */
static int set_memories(Recording *self, PyObject *inputs, PyObject *fresh, Py_ssize_t n_fresh)
{
    Py_ssize_t n_given, n;
    int64_t *given = executor_copy_ints(inputs, &n_given);
    if (given == NULL) return -1;
    self->n_inputs = n_given / 2;
    self->n_fresh = n_fresh;
    self->memories = zeroed(self->n_inputs + n_fresh, sizeof *self->memories);
    self->fresh = zeroed(n_fresh, sizeof *self->fresh);
    self->fresh_ints = executor_copy_ints(fresh, &n);
    if (self->memories != NULL && self->fresh != NULL && self->fresh_ints != NULL) {
        for (Py_ssize_t i = 0; i < self->n_inputs; i++)
            self->memories[i] = (Memory){.kind = (enum InputKind)given[2 * i], .address = (char *)(uintptr_t)given[2 * i + 1]};
        const int64_t *at = self->fresh_ints;
        for (Py_ssize_t i = 0; i < n_fresh; i++, at += 3 + 2 * at[2]) {
            self->memories[self->n_inputs + i].address = (char *)(uintptr_t)at[0];
            self->fresh[i] = (Layout){.dtype = at[1], .ndim = at[2], .sizes = at + 3};
        }
    }
    PyMem_Free(given);
    return PyErr_Occurred() ? -1 : 0;
}

/* launches: what Executor.trace noted, of those that have uses. */
static int set_sites(Recording *self, PyObject *launches)
{
    self->n_sites = PyTuple_GET_SIZE(launches);
    self->sites = zeroed(self->n_sites, sizeof *self->sites);
    for (Py_ssize_t i = 0; self->sites != NULL && i < self->n_sites; i++) {
        Site *site = &self->sites[i];
        unsigned long long node;
        long long grid[3];
        const char *pointers, *ints;
        Py_ssize_t pointer_bytes, int_bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(launches, i), "KO!(LLL)y#y#", &node, &GpuKernelType, &site->kernel, &grid[0], &grid[1],
                              &grid[2], &pointers, &pointer_bytes, &ints, &int_bytes))
            return -1;
        site->node = (void *)(uintptr_t)node;
        for (int k = 0; k < 3; k++) site->grid[k] = grid[k];
        site->n_pointers = pointer_bytes / (Py_ssize_t)sizeof(void *);
        site->n_ints = int_bytes / (Py_ssize_t)sizeof(int64_t);
        site->pointers = PyMem_Malloc(pointer_bytes + 1);
        site->ints = PyMem_Malloc(int_bytes + 1);
        if (site->pointers == NULL || site->ints == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(site->pointers, pointers, pointer_bytes);
        memcpy(site->ints, ints, int_bytes);
    }
    return self->sites == NULL ? -1 : 0;
}

/* uses: (memory, site, argument, delta)..., in the order of memories. */
static int set_uses(Recording *self, PyObject *uses)
{
    Py_ssize_t n;
    int64_t *given = executor_copy_ints(uses, &n);
    if (given == NULL) return -1;
    self->n_uses = n / 4;
    self->uses = zeroed(self->n_uses, sizeof *self->uses);
    for (Py_ssize_t i = 0; self->uses != NULL && i < self->n_uses; i++) {
        Memory *memory = &self->memories[given[4 * i]];
        if (memory->end_use == 0) memory->first_use = i;
        memory->end_use = i + 1;
        self->uses[i] = (Use){.site = given[4 * i + 1], .argument = given[4 * i + 2], .delta = given[4 * i + 3]};
    }
    PyMem_Free(given);
    return self->uses == NULL ? -1 : 0;
}

/* copies: (memory, node, is_destination)... */
static int set_copies(Recording *self, PyObject *copies)
{
    Py_ssize_t n;
    int64_t *given = executor_copy_ints(copies, &n);
    if (given == NULL) return -1;
    self->n_copies = n / 3;
    self->copies = zeroed(self->n_copies, sizeof *self->copies);
    int status = self->copies == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !status && i < self->n_copies; i++) {
        Copy *copy = &self->copies[i];
        copy->memory = given[3 * i];
        copy->node = (void *)(uintptr_t)given[3 * i + 1];
        copy->is_destination = given[3 * i + 2] != 0;
        status = cuda_driver.copy_node_params(copy->node, &copy->params);
        const CopyEnd *end = copy->is_destination ? &copy->params.destination : &copy->params.source;
        if (status) cuda_failed(status, "reading a copy of a recorded graph");
        else if (end->x || (char *)(uintptr_t)end->device != self->memories[copy->memory].address) {
            PyErr_SetString(PyExc_RuntimeError, "a copy of a recorded graph does not have the address that it was made with");
            status = -1;
        }
    }
    PyMem_Free(given);
    return status ? -1 : 0;
}

/* Append to the pinned tensors: (tensor, tensors of a recording that share its memory)... */
static int add_pinned(Recording *self, PyObject *pinned)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(pinned);
    Pinned *grown = PyMem_Realloc(self->pinned, (self->n_pinned + count + 1) * sizeof *grown);
    if (grown == NULL) return PyErr_NoMemory(), -1;
    self->pinned = grown;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *tensor;
        unsigned int own_uses;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pinned, i), "O!I", torch_api.tensor_type, &tensor, &own_uses)) return -1;
        grown[self->n_pinned + i] = (Pinned){.tensor = handle_of(tensor), .own_uses = own_uses};
        if (torch_api.get_data_ptr(handle_of(tensor), &grown[self->n_pinned + i].address)) {
            PyErr_SetString(PyExc_RuntimeError, "an output in place has no memory");
            return -1;
        }
    }
    self->n_pinned += count;
    return 0;
}

/* outputs: (kind, at, value, offset, ndim, sizes, strides)... */
static int set_outputs(Recording *self, PyObject *outputs, Py_ssize_t n_outputs)
{
    Py_ssize_t n;
    self->n_outputs = n_outputs;
    self->outputs = zeroed(n_outputs, sizeof *self->outputs);
    self->output_ints = executor_copy_ints(outputs, &n);
    if (self->outputs == NULL || self->output_ints == NULL) return -1;
    const int64_t *at = self->output_ints;
    for (Py_ssize_t i = 0; i < n_outputs; i++, at += 5 + 2 * at[4])
        self->outputs[i] = (Output){
            .kind = (enum OutputKind)at[0], .at = at[1], .value = at[2], .offset = at[3], .ndim = at[4], .sizes = at + 5};
    return 0;
}

/* draws: (site, argument, word)... */
static int set_draws(Recording *self, PyObject *offsets, PyObject *draws)
{
    Py_ssize_t n;
    self->offsets = executor_copy_ints(offsets, &self->n_reserved);
    int64_t *given = executor_copy_ints(draws, &n);
    if (self->offsets == NULL || given == NULL) {
        PyMem_Free(given);
        return -1;
    }
    self->n_draws = n / 3;
    self->draws = zeroed(self->n_draws, sizeof *self->draws);
    self->words = zeroed(self->n_elements + 2 * self->n_reserved, sizeof *self->words);
    for (Py_ssize_t i = 0; self->draws != NULL && i < self->n_draws; i++)
        self->draws[i] = (Draw){.site = given[3 * i], .argument = given[3 * i + 1], .word = given[3 * i + 2]};
    PyMem_Free(given);
    return self->draws == NULL || self->words == NULL ? -1 : 0;
}

/* words: (input, node of the low half, node of the high half)... */
static int set_words(Recording *self, PyObject *words)
{
    Py_ssize_t n;
    int64_t *given = executor_copy_ints(words, &n);
    if (given == NULL) return -1;
    self->n_given = n / 3;
    self->given = zeroed(self->n_given, sizeof *self->given);
    int status = self->given == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !status && i < self->n_given; i++) {
        Word *word = &self->given[i];
        word->input = given[3 * i];
        for (int half = 0; !status && half < 2; half++) {
            word->nodes[half] = (void *)(uintptr_t)given[3 * i + 1 + half];
            status = cuda_driver.fill_node_params(word->nodes[half], &word->params[half]);
            if (status) cuda_failed(status, "reading a fill of a recorded graph");
        }
    }
    PyMem_Free(given);
    return status ? -1 : 0;
}

static PyObject *recording_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"executor", "keep", "replay", "exec", "device", "stream", "symbols", "settings", "inputs", "n_fresh", "fresh",
                            "launches", "uses", "copies", "pinned", "n_outputs", "outputs", "reserve", "n_elements", "offsets", "draws", "words", "spends",
                            NULL};
    PyObject *reserve, *offsets, *draws, *words;
    int spends;
    PyObject *executor, *keep, *replay, *symbols, *settings, *inputs, *fresh, *launches, *uses, *copies, *pinned, *outputs;
    unsigned long long exec, stream;
    int device, handle = 0;
    Py_ssize_t n_fresh, n_outputs, n_elements;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOKiKSO!SnSO!SSO!nSOnSSSp", names, &ExecutorType, &executor, &keep, &replay, &exec, &device,
                                     &stream, &symbols, &PyTuple_Type, &settings, &inputs, &n_fresh, &fresh, &PyTuple_Type, &launches, &uses, &copies,
                                     &PyTuple_Type, &pinned, &n_outputs, &outputs, &reserve, &n_elements, &offsets, &draws, &words, &spends))
        return NULL;
    Recording *self = (Recording *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->executor = (Executor *)Py_NewRef(executor);
    self->keep = PyTuple_Pack(3, keep, launches, pinned);
    self->settings = Py_NewRef(settings);
    self->replay = replay == Py_None ? NULL : Py_NewRef(replay);
    self->reserve = reserve == Py_None ? NULL : Py_NewRef(reserve);
    self->n_elements = n_elements;
    self->spends = spends;
    self->exec = (void *)(uintptr_t)exec;
    self->stream = (void *)(uintptr_t)stream;
    self->device = device;
    int status = cuda_driver.device_get(&handle, device);
    if (!status) status = cuda_driver.primary_retain(&self->context, handle);
    if (status) cuda_failed(status, "opening the device");
    else if (self->keep != NULL && (self->symbols = executor_copy_ints(symbols, &self->n_symbols)) != NULL &&
             !set_memories(self, inputs, fresh, n_fresh) && !set_sites(self, launches) && !set_uses(self, uses) &&
             !set_copies(self, copies) && !add_pinned(self, pinned) && !set_outputs(self, outputs, n_outputs) &&
             !set_draws(self, offsets, draws) && !set_words(self, words))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void recording_dealloc(PyObject *object)
{
    Recording *self = (Recording *)object;
    for (Py_ssize_t i = 0; self->sites != NULL && i < self->n_sites; i++) {
        PyMem_Free(self->sites[i].pointers);
        PyMem_Free(self->sites[i].ints);
    }
    void *owned[] = {self->symbols, self->fresh_ints, self->output_ints, self->memories, self->fresh, self->sites, self->uses,
                     self->copies, self->pinned, self->outputs, self->words, self->offsets, self->draws, self->given};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) PyMem_Free(owned[i]);
    Py_XDECREF(self->replay);
    Py_XDECREF(self->reserve);
    Py_XDECREF(self->before);
    Py_XDECREF(self->settings);
    Py_XDECREF(self->keep);
    Py_XDECREF(self->executor);
    Py_TYPE(object)->tp_free(object);
}

/* recording.replay(*args) -> outputs: for arguments that it was recorded with. */
static PyObject *recording_replay_method(PyObject *object, PyObject *const *args, Py_ssize_t nargs)
{
    Recording *self = (Recording *)object;
    if (self->replaying) return PyErr_Format(PyExc_RuntimeError, "%s is being replayed", self->executor->name);
    if (nargs == self->n_inputs) return recording_replay(self, args);
    return PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", self->executor->name, self->n_inputs, nargs);
}

/* recording.watch(pinned): replay only when nobody holds these tensors, which lie in its memory, too. */
static PyObject *recording_watch(PyObject *object, PyObject *pinned)
{
    Recording *self = (Recording *)object;
    if (!PyTuple_Check(pinned)) return PyErr_Format(PyExc_TypeError, "watch takes a tuple");
    PyObject *keep = PyTuple_Pack(2, self->keep, pinned);
    if (keep == NULL) return NULL;
    Py_SETREF(self->keep, keep);
    if (add_pinned(self, pinned)) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef recording_methods[] = {
    {"replay", (PyCFunction)(void (*)(void))recording_replay_method, METH_FASTCALL,
     "replay(*args) -> outputs: launch it on the arguments that it was recorded with."},
    {"watch", recording_watch, METH_O, "watch(pinned): (tensor, own uses)... that must not be held by others during a replay."},
    {NULL},
};

static PyMemberDef recording_members[] = {
    {"hits", T_LONGLONG, offsetof(Recording, hits), READONLY, "How often it was replayed."},
    {"before", T_OBJECT, offsetof(Recording, before), 0, "What is called once, before the next replay; or None."},
    {NULL},
};

PyTypeObject RecordingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_runtime._core.Recording",
    .tp_doc = "A call of a Program as an executable CUDA graph (csrc/recording.c; made by graph_launch/record.py).",
    .tp_basicsize = sizeof(Recording),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = recording_new,
    .tp_dealloc = recording_dealloc,
    .tp_members = recording_members,
    .tp_methods = recording_methods,
};
