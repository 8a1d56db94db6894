#include "dispatch.h"

#include <dlfcn.h>
#include <string.h>

/* libtorch's "stable" interface: an IValue is a 64-bit word.  A tensor, a string, a list and an optional that is there are
 * words with a pointer that the callee frees. */
static struct {
    int32_t (*call)(const char *, const char *, uint64_t *, uint64_t);
    int32_t (*new_handle)(Handle, Handle *);
    int32_t (*new_list)(size_t, void **);
    int32_t (*push)(void *, uint64_t);
    int32_t (*new_string)(const char *, size_t, void **);
    int32_t (*new_value)(uint64_t **); /* from torch 2.13 on; before, the callee frees it by operator delete */
    void *(*allocate)(size_t);         /* operator new */
    uint64_t version;
} api;

static uint64_t word_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* Read one argument's description at *pc into *word, and move *pc behind it. */
static bool build(Call *call, const int64_t **pc, uint64_t *word)
{
    const int64_t kind = *(*pc)++, operand = kind == ARGUMENT_SOME ? 0 : *(*pc)++;
    switch (kind) {
        case ARGUMENT_WORD: *word = (uint64_t)operand; return true;
        case ARGUMENT_VALUE: *word = (uint64_t)call->values[operand]; return true;
        case ARGUMENT_TENSOR: {
            Handle made = NULL;
            if (call->slots[operand].handle == NULL || api.new_handle(call->slots[operand].handle, &made)) return false;
            *word = word_of(made);
            return true;
        }
        case ARGUMENT_STRING: {
            PyObject *bytes = PyTuple_GET_ITEM(call->ex->objects, operand);
            void *made = NULL;
            if (api.new_string(PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes), &made)) return false;
            *word = word_of(made);
            return true;
        }
        case ARGUMENT_SOME: {
            uint64_t *made = NULL;
            if (api.new_value == NULL) made = api.allocate(sizeof *made);
            else if (api.new_value(&made)) return false;
            *word = word_of(made);
            return build(call, pc, made);
        }
        default: {
            void *made = NULL;
            uint64_t item;
            if (api.new_list((size_t)operand, &made)) return false;
            for (int64_t i = 0; i < operand; i++)
                if (!build(call, pc, &item) || api.push(made, item)) return false;
            *word = word_of(made);
            return true;
        }
    }
}

/* A failure in `build` means that memory is exhausted or that a step reads a tensor that is not there: the arguments that
 * were built before it are lost. */
bool dispatch_call(Call *call, const int64_t *pc)
{
    uint64_t stack[MAX_OPERANDS];
    PyObject *objects = call->ex->objects;
    const char *operator = PyBytes_AS_STRING(PyTuple_GET_ITEM(objects, pc[0]));
    const char *overload = PyBytes_AS_STRING(PyTuple_GET_ITEM(objects, pc[1]));
    const int64_t n_results = pc[2], *results = pc + 3, n_arguments = pc[3 + n_results];
    const int64_t *argument = pc + 4 + n_results;
    for (int64_t i = 0; i < n_arguments; i++)
        if (!build(call, &argument, &stack[i])) return false;
    if (api.call(operator, overload, stack, api.version)) return false;
    for (int64_t i = 0; i < n_results; i++) {
        Handle made = (Handle)(uintptr_t)stack[i];
        if (results[i] < 0) torch_api.delete_tensor(made);
        else call->slots[results[i]] = (Slot){.handle = made, .hold = HOLD_HANDLE};
    }
    return true;
}

/* sum(2 x 3 tensor, dim=[1], keepdim=True, dtype=float64): a tensor, a list, optionals and a dtype. */
static bool self_test(Handle sample)
{
    static const int64_t code[] = {ARGUMENT_TENSOR, 0, ARGUMENT_SOME, ARGUMENT_LIST, 1, ARGUMENT_WORD, 1,
                                   ARGUMENT_WORD, 1, ARGUMENT_SOME, ARGUMENT_WORD, 7 /* float64 */};
    Slot slot = {.handle = sample};
    Call call = {.slots = &slot};
    const int64_t *pc = code;
    uint64_t stack[4];
    for (int i = 0; i < 4; i++)
        if (!build(&call, &pc, &stack[i])) return false;
    if (api.call("aten::sum", "dim_IntList", stack, api.version)) return false;
    Handle made = (Handle)(uintptr_t)stack[0];
    int64_t dim = 0, *sizes = NULL;
    const bool right = torch_api.get_dim(made, &dim) == 0 && dim == 2 && torch_api.get_sizes(made, &sizes) == 0 &&
                       sizes[0] == 2 && sizes[1] == 1;
    torch_api.delete_tensor(made);
    return right;
}

bool dispatch_init(void *libtorch, Handle sample)
{
    uint64_t (*version)(void) = NULL;
    const struct {
        void *library;
        const char *name;
        void *into;
        bool optional;
    } wanted[] = {
        {libtorch, "torch_call_dispatcher", &api.call, false},
        {libtorch, "aoti_torch_new_tensor_handle", &api.new_handle, false},
        {libtorch, "torch_new_list_reserve_size", &api.new_list, false},
        {libtorch, "torch_list_push_back", &api.push, false},
        {libtorch, "torch_new_string_handle", &api.new_string, false},
        {libtorch, "aoti_torch_abi_version", &version, false},
        {libtorch, "torch_new_stable_ivalue", &api.new_value, true},
        {libtorch, "_Znwm", &api.allocate, true}, /* found in what libtorch is linked with */
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(wanted[i].library, wanted[i].name);
        if (symbol == NULL && !wanted[i].optional) return false;
        memcpy(wanted[i].into, &symbol, sizeof symbol);
    }
    if (api.new_value == NULL && api.allocate == NULL) return false;
    api.version = version();
    return self_test(sample);
}
