/* Reading tensors and torch's thread-local state without torch headers.
 *
 * Where each field of c10::TensorImpl stands is found at import by tensor_layout.py, which compares memory with what
 * the Python API reports for differently shaped tensors, and told to `configure`.  Until then `configured` is 0 and the guard
 * compiler emits Python predicates instead of TENSOR and TORCH_STATE operations.
 */
#include "core.h"
#include <dlfcn.h>

static struct {
    int configured;
    Py_ssize_t impl;    /* in the Python object: the TensorImpl pointer */
    Py_ssize_t keys;    /* in the TensorImpl, here and below */
    Py_ssize_t kind;    /* dtype (16 bits), device type (8), device index (8) */
    Py_ssize_t storage; /* the StorageImpl pointer */
    Py_ssize_t ndim;
    Py_ssize_t extents; /* inline: 5 sizes, 5 strides; a pointer to sizes then strides when ndim > 5 */
    Py_ssize_t autograd_flags; /* in c10::AutogradState: the byte of mode bits */
    PyTypeObject *tensor_type;
    int (*requires_grad)(const void *impl);
    const unsigned char *(*autograd_state)(void);
    int64_t (*function_modes)(void);
    int8_t (*default_dtype)(void);
    PyObject *forward_ad; /* the dict of torch.autograd.forward_ad */
    void *c10;
} torch;

#define INLINE_DIMS 5
#define DISPATCH_STATE "_ZN3c104impl26raw_local_dispatch_key_setE"

#define FIELD(type, base, offset) (*(type const *)((const char *)(base) + (offset)))

static inline const int64_t *
sizes_of(const void *impl, int64_t ndim)
{
    return LIKELY(ndim <= INLINE_DIMS) ? &FIELD(int64_t, impl, torch.extents) : FIELD(int64_t *, impl, torch.extents);
}

static inline const int64_t *
strides_of(const void *impl, int64_t ndim)
{
    return sizes_of(impl, ndim) + (LIKELY(ndim <= INLINE_DIMS) ? INLINE_DIMS : ndim);
}

static inline int
extents_match(const int64_t *expected, const int64_t *found, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (expected[i] != found[i] && expected[i] != ANY_SIZE) {
            return 0;
        }
    }
    return 1;
}

int
tensor_matches(const TensorFacts *facts, PyObject *object)
{
    if (UNLIKELY(Py_TYPE(object) != facts->type)) {
        return 0;
    }
    const void *impl = FIELD(void *, object, torch.impl);
    /* The key set first: it tells apart the tensors whose other fields mean something else (fake, functorch, sparse, nested). */
    if (UNLIKELY(FIELD(uint64_t, impl, torch.keys) != facts->keys || FIELD(uint32_t, impl, torch.kind) != facts->kind ||
                 FIELD(int64_t, impl, torch.ndim) != facts->ndim)) {
        return 0;
    }
    int64_t ndim = facts->ndim;
    return extents_match(facts->extents, sizes_of(impl, ndim), ndim) &&
           extents_match(facts->extents + ndim, strides_of(impl, ndim), ndim) &&
           (torch.requires_grad(impl) & 1) == facts->requires_grad;
}

int
tensor_extent(PyObject *object, int64_t dim, int stride, int64_t *extent)
{
    if (!torch.configured || !PyObject_TypeCheck(object, torch.tensor_type)) {
        return 0;
    }
    const void *impl = FIELD(void *, object, torch.impl);
    int64_t ndim = FIELD(int64_t, impl, torch.ndim);
    if (dim < 0 || dim >= ndim) {
        return 0;
    }
    *extent = stride ? strides_of(impl, ndim)[dim] : sizes_of(impl, ndim)[dim];
    return 1;
}

const void *
tensor_storage(PyObject *object)
{
    if (!torch.configured || !PyObject_TypeCheck(object, torch.tensor_type)) {
        return NULL;
    }
    return FIELD(void *, FIELD(void *, object, torch.impl), torch.storage);
}

static int
fill_extents(int64_t *extents, PyObject *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        extents[i] = value == Py_None ? ANY_SIZE : PyLong_AsLongLong(value);
        if (extents[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

TensorFacts *
tensor_facts_new(PyObject *payload)
{
    PyObject *type, *sizes, *strides;
    unsigned long long keys;
    unsigned int kind;
    int requires_grad;
    if (!torch.configured) {
        PyErr_SetString(PyExc_RuntimeError, "a TENSOR operation needs the tensor layout to be configured");
        return NULL;
    }
    if (!PyArg_ParseTuple(payload, "O!KIpO!O!:TENSOR", &PyType_Type, &type, &keys, &kind, &requires_grad, &PyTuple_Type,
                          &sizes, &PyTuple_Type, &strides)) {
        return NULL;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(sizes);
    if (!PyType_IsSubtype((PyTypeObject *)type, torch.tensor_type) || PyTuple_GET_SIZE(strides) != ndim) {
        PyErr_SetString(PyExc_ValueError, "TENSOR: not a tensor type, or sizes and strides differ in length");
        return NULL;
    }
    TensorFacts *facts = PyMem_Calloc(1, sizeof(TensorFacts) + 2 * (size_t)ndim * sizeof(int64_t));
    if (facts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    facts->type = (PyTypeObject *)type;
    facts->keys = keys;
    facts->kind = kind;
    facts->requires_grad = requires_grad;
    facts->ndim = ndim;
    if (fill_extents(facts->extents, sizes) < 0 || fill_extents(facts->extents + ndim, strides) < 0) {
        PyMem_Free(facts);
        return NULL;
    }
    return facts;
}

/* ---- thread-local state ---- */

/* Everything a capture may depend on that changes with modes: autocast, inference, fake and functorch layers (the dispatch
 * words), grad mode and its kin, torch-function modes, the default dtype, the level of forward-mode differentiation. */
typedef struct {
    uint64_t dispatch[2];
    int64_t function_modes;
    int64_t default_dtype;
    int64_t autograd_flags;
    int64_t forward_level;
} TorchState;

static const uint64_t *
dispatch_words(void)
{
    static __thread const uint64_t *words; /* dlsym resolves a thread-local symbol to this thread's copy */
    if (UNLIKELY(words == NULL)) {
        words = dlsym(torch.c10, DISPATCH_STATE);
    }
    return words;
}

/* -1 outside of all levels, where no tensor has a tangent. */
static inline int64_t
forward_level(void)
{
    static PyObject *name;
    if (UNLIKELY(name == NULL) && (name = PyUnicode_InternFromString("_current_level")) == NULL) {
        PyErr_Clear();
        return INT64_MIN;
    }
    PyObject *level = PyDict_GetItemWithError(torch.forward_ad, name);
    if (UNLIKELY(level == NULL || !PyLong_CheckExact(level))) {
        PyErr_Clear();
        return INT64_MIN;
    }
    int overflow;
    return PyLong_AsLongLongAndOverflow(level, &overflow);
}

static inline void
read_state(TorchState *state)
{
    const uint64_t *words = dispatch_words();
    state->dispatch[0] = words[0];
    state->dispatch[1] = words[1];
    state->function_modes = torch.function_modes();
    state->default_dtype = torch.default_dtype();
    state->autograd_flags = torch.autograd_state()[torch.autograd_flags];
    state->forward_level = forward_level();
}

int
torch_state_matches(PyObject *payload)
{
    const TorchState *expected = (const TorchState *)PyBytes_AS_STRING(payload);
    const uint64_t *words = dispatch_words();
    return words[0] == expected->dispatch[0] && words[1] == expected->dispatch[1] &&
           torch.function_modes() == expected->function_modes && torch.default_dtype() == expected->default_dtype &&
           torch.autograd_state()[torch.autograd_flags] == expected->autograd_flags && forward_level() == expected->forward_level;
}

static PyObject *
torch_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (!torch.configured) {
        PyErr_SetString(PyExc_RuntimeError, "torch_state needs the tensor layout to be configured");
        return NULL;
    }
    TorchState state;
    read_state(&state);
    return PyBytes_FromStringAndSize((const char *)&state, sizeof(state));
}

/* The raw words of one tensor that a TENSOR payload is made of: (key set, kind). */
static PyObject *
tensor_words(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!torch.configured || !PyObject_TypeCheck(object, torch.tensor_type)) {
        PyErr_SetString(PyExc_TypeError, "tensor_words expects a tensor, and the layout configured");
        return NULL;
    }
    const void *impl = FIELD(void *, object, torch.impl);
    return Py_BuildValue("KI", (unsigned long long)FIELD(uint64_t, impl, torch.keys),
                         (unsigned int)FIELD(uint32_t, impl, torch.kind));
}

static PyObject *
configure(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tensor_type", "c10", "libtorch", "impl", "keys", "kind", "storage", "ndim", "extents", "autograd_flags", "forward_ad", NULL};
    const char *c10_path, *libtorch_path;
    PyObject *tensor_type, *forward_ad;
    Py_ssize_t impl, keys, kind, storage, ndim, extents, autograd_flags;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!ssnnnnnnnO!:configure", names, &PyType_Type, &tensor_type, &c10_path,
                                     &libtorch_path, &impl, &keys, &kind, &storage, &ndim, &extents, &autograd_flags, &PyDict_Type,
                                     &forward_ad)) {
        return NULL;
    }
    void *c10 = dlopen(c10_path, RTLD_NOW | RTLD_NOLOAD);
    void *libtorch = dlopen(libtorch_path, RTLD_NOW | RTLD_NOLOAD);
    if (c10 == NULL || libtorch == NULL) {
        return PyErr_Format(PyExc_OSError, "torch's libraries are not loaded from %s", c10_path);
    }
    *(void **)&torch.requires_grad = dlsym(c10, "_ZNK3c1010TensorImpl13requires_gradEv");
    *(void **)&torch.autograd_state = dlsym(c10, "_ZN3c1013AutogradState13get_tls_stateEv");
    *(void **)&torch.default_dtype = dlsym(c10, "_ZN3c1031get_default_dtype_as_scalartypeEv");
    *(void **)&torch.function_modes = dlsym(libtorch, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    torch.c10 = c10;
    if (!torch.requires_grad || !torch.autograd_state || !torch.default_dtype || !torch.function_modes || !dispatch_words()) {
        PyErr_SetString(PyExc_OSError, "torch's libraries lack a symbol that guards need");
        return NULL;
    }
    torch.impl = impl;
    torch.keys = keys;
    torch.kind = kind;
    torch.storage = storage;
    torch.ndim = ndim;
    torch.extents = extents;
    torch.autograd_flags = autograd_flags;
    torch.forward_ad = Py_NewRef(forward_ad);
    torch.tensor_type = (PyTypeObject *)Py_NewRef(tensor_type);
    torch.configured = 1;
    Py_RETURN_NONE;
}

PyMethodDef tensor_methods[] = {
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "Tell where libtorch's fields and symbols are; done once, by tensor_layout.py."},
    {"torch_state", torch_state, METH_NOARGS, "This thread's torch state, as the payload of a TORCH_STATE operation."},
    {"tensor_words", tensor_words, METH_O, "(dispatch key set, dtype-and-device word) of a tensor."},
    {NULL, NULL, 0, NULL},
};
