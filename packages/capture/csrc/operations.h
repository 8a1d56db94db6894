/* What one operation of a GuardProgram does: loads, checks, and groups of dict reads.  Included by program.c alone, inline in its interpreter.
 *
 * None of these leaves an error set.  A load gives a borrowed reference, or NULL when its origin holds nothing.
 */
#ifndef FLAMBEAU_CAPTURE_OPERATIONS_H
#define FLAMBEAU_CAPTURE_OPERATIONS_H

#include "program.h"
#include <stddef.h>
#include <string.h>

static PyObject *absent; /* origins.ABSENT: what TYPE_ATTRIBUTE loads when there is none */

/* ---- loads ---- */

/* The referent of a weak reference, or NULL when it has died or is dying. */
static inline PyObject *
weak_object(PyObject *reference)
{
    PyObject *object = ((PyWeakReference *)reference)->wr_object;
    return object == Py_None || Py_REFCNT(object) <= 0 ? NULL : object;
}

static inline PyObject *
load_instance_dict(PyObject *object)
{
    if (PyType_Check(object)) {
        return NULL;
    }
    PyObject **slot = _PyObject_GetDictPtr(object);
    if (slot != NULL && *slot != NULL) {
        return *slot;
    }
    if (Py_TYPE(object)->tp_dictoffset == 0) {
        return NULL;
    }
    int collecting = PyGC_Disable(); /* a collection could run user code under borrowed registers */
    PyObject *dict = PyObject_GenericGetDict(object, NULL); /* makes the object keep it */
    if (collecting) {
        PyGC_Enable();
    }
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(dict);
    return dict;
}

static inline PyObject *
load_dict_entry(PyObject *object, PyObject *key, Py_hash_t hash)
{
    if (UNLIKELY(!PyDict_Check(object))) {
        return NULL;
    }
    PyObject *value = _PyDict_GetItem_KnownHash(object, key, hash);
    if (UNLIKELY(value == NULL && PyErr_Occurred())) {
        PyErr_Clear();
    }
    return value;
}

static PyObject *
load_dict_key_at(PyObject *object, int64_t index)
{
    PyObject *key;
    Py_ssize_t position = 0;
    if (!PyDict_Check(object) || PyODict_Check(object)) { /* an OrderedDict keeps an order of its own */
        return NULL;
    }
    /* Positions are entries, those of deleted keys included.  None beyond the count of keys: none was deleted, and each is its own index. */
    Py_ssize_t beyond = PyDict_GET_SIZE(object);
    if (index < beyond && !PyDict_Next(object, &beyond, &key, NULL)) {
        position = (Py_ssize_t)index;
        return PyDict_Next(object, &position, &key, NULL) ? key : NULL;
    }
    for (; PyDict_Next(object, &position, &key, NULL); index--) {
        if (index == 0) {
            return key;
        }
    }
    return NULL;
}

static inline PyObject *
load_item(PyObject *object, int64_t index)
{
    if (PyTuple_Check(object)) {
        return index < PyTuple_GET_SIZE(object) ? PyTuple_GET_ITEM(object, index) : NULL;
    }
    if (PyList_Check(object)) {
        return index < PyList_GET_SIZE(object) ? PyList_GET_ITEM(object, index) : NULL;
    }
    return NULL;
}

static inline PyObject *
load_type_attribute(PyObject *object, PyObject *name)
{
    if (!PyType_Check(object)) {
        return NULL;
    }
    PyObject *found = _PyType_Lookup((PyTypeObject *)object, name);
    return found == NULL ? absent : found;
}

static inline PyObject **
function_field(PyObject *object, int64_t field)
{
    static const size_t offsets[] = {
        offsetof(PyFunctionObject, func_code), offsetof(PyFunctionObject, func_defaults), offsetof(PyFunctionObject, func_kwdefaults),
        offsetof(PyFunctionObject, func_closure), offsetof(PyFunctionObject, func_globals),
    };
    return (PyObject **)((char *)object + offsets[field]);
}

static inline PyObject *
load_function_field(PyObject *object, int64_t field)
{
    if (!PyFunction_Check(object)) {
        return NULL;
    }
    PyObject *value = *function_field(object, field);
    return value == NULL ? Py_None : value;
}

static inline PyObject *
load_method_part(PyObject *object, int64_t instance)
{
    if (!PyMethod_Check(object)) {
        return NULL;
    }
    return instance ? PyMethod_GET_SELF(object) : PyMethod_GET_FUNCTION(object);
}

static PyObject *
load_call(const Op *op, PyObject *const *regs)
{
    /* payload: (function, (register, ...)) */
    PyObject *sources = PyTuple_GET_ITEM(op->object, 1);
    PyObject *args[4];
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    for (Py_ssize_t i = 0; i < count; i++) {
        args[i] = regs[PyLong_AsLong(PyTuple_GET_ITEM(sources, i))];
    }
    return PyObject_Vectorcall(PyTuple_GET_ITEM(op->object, 0), args, (size_t)count, NULL);
}

/* ---- checks ---- */

/* Equality of constants, exact in type at every level and in the bits of floats.  It runs no user code: objects of heap types are
 * equal only to themselves. */
static int
constants_equal(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) {
        return 0;
    }
    if (PyTuple_Check(a)) {
        Py_ssize_t count = PyTuple_GET_SIZE(a);
        if (count != PyTuple_GET_SIZE(b)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            if (!constants_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) {
                return 0;
            }
        }
        return 1;
    }
    if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) || type == &PyBool_Type) {
        return 0;
    }
    if (type == &PyFloat_Type) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (type == &PyComplex_Type) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (type == &PySlice_Type) {
        PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
        return constants_equal(x->start, y->start) && constants_equal(x->stop, y->stop) && constants_equal(x->step, y->step);
    }
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
        return 0;
    }
    return equal;
}

static inline int
check_length(PyObject *object, int64_t length)
{
    if (PyList_Check(object) || PyTuple_Check(object)) {
        return Py_SIZE(object) == length;
    }
    if (PyDict_Check(object)) {
        return ((PyDictObject *)object)->ma_used == length;
    }
    if (PyAnySet_Check(object)) {
        return PySet_GET_SIZE(object) == length;
    }
    return 0;
}

/* An OrderedDict keeps an order of its own, which only its iterator knows. */
static int
check_ordered_keys(PyObject *object, PyObject *keys)
{
    int collecting = PyGC_Disable(); /* a collection could run user code under borrowed registers */
    PyObject *iterator = PyODict_Type.tp_iter(object);
    if (collecting) {
        PyGC_Enable();
    }
    int equal = iterator != NULL;
    for (Py_ssize_t i = 0; equal && i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = Py_TYPE(iterator)->tp_iternext(iterator);
        equal = key != NULL && constants_equal(key, PyTuple_GET_ITEM(keys, i));
        Py_XDECREF(key);
    }
    Py_XDECREF(iterator);
    PyErr_Clear();
    return equal;
}

static int
check_keys(PyObject *object, PyObject *keys)
{
    PyObject *key;
    Py_ssize_t position = 0, count = PyTuple_GET_SIZE(keys);
    if (!PyDict_Check(object) || ((PyDictObject *)object)->ma_used != count) {
        return 0;
    }
    if (count > 0 && PyODict_Check(object)) {
        return check_ordered_keys(object, keys);
    }
    for (Py_ssize_t i = 0; PyDict_Next(object, &position, &key, NULL); i++) {
        if (!constants_equal(key, PyTuple_GET_ITEM(keys, i))) {
            return 0;
        }
    }
    return 1;
}

static inline int
check_has_key(PyObject *object, const Op *op)
{
    return load_dict_entry(object, op->object, op->hash) != NULL;
}

/* As check_distinct_memory, with a hash table of 2^bits empty slots. */
static inline int
storages_are_distinct(const Op *op, PyObject *const *regs, const void **table, unsigned bits)
{
    size_t last = ((size_t)1 << bits) - 1;
    for (int64_t i = 0; op->sources[i] != 0; i++) {
        const void *storage = tensor_storage(regs[op->sources[i]]);
        size_t slot = ((uintptr_t)storage >> 4) * 0x9E3779B97F4A7C15u >> (64 - bits);
        while (table[slot] != NULL && table[slot] != storage) {
            slot = (slot + 1) & last;
        }
        /* Written ones come first, so a storage met before is one that is written. */
        if (storage == NULL || table[slot] == storage) {
            return 0;
        }
        if (i < op->number) {
            table[slot] = storage;
        }
    }
    return 1;
}

/* Whether no written tensor shares its storage with another of the tensors.  An optimizer's step writes thousands. */
static NOINLINE int
check_distinct_memory(const Op *op, PyObject *const *regs)
{
    enum { BITS = 10 };
    if (op->number <= 1 << (BITS - 1)) {
        const void *table[1 << BITS] = {NULL};
        return storages_are_distinct(op, regs, table, BITS);
    }
    unsigned bits = BITS + 1;
    while ((int64_t)1 << (bits - 1) < op->number) {
        bits++;
    }
    const void **table = PyMem_Calloc((size_t)1 << bits, sizeof(*table));
    int distinct = table != NULL && storages_are_distinct(op, regs, table, bits);
    PyMem_Free(table);
    return distinct;
}

/* The head of NumPy's PyArrayObject, the same in all versions of its C API. */
typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} ArrayHead;

#define ARRAY_ALIGNED 0x100
#define ARRAY_WRITEABLE 0x400

/* payload: numpy.ndarray; number: the wanted flags */
static inline int
check_array(PyObject *object, const Op *op)
{
    return (PyObject *)Py_TYPE(object) == op->object &&
           (((const ArrayHead *)object)->flags & (ARRAY_ALIGNED | ARRAY_WRITEABLE)) == op->number;
}

static int
load_symbol_int(PyObject *object, int64_t *value)
{
    int overflow;
    if (!PyLong_CheckExact(object)) {
        return 0;
    }
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* ---- groups of dict reads ---- */

/* Until CPython 3.13 a dict has a version tag that is unique among dicts and contents: as long as it stands, so does all that was read of
 * the dict, and what the dict holds is alive.  (3.13.0 misses stores to inline values, gh-125608; 3.14 has no tags.) */
static inline uint64_t
dict_version(PyObject *object)
{
#if PY_VERSION_HEX < 0x030D0000
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
    return PyDict_Check(object) ? ((PyDictObject *)object)->ma_version_tag : 0;
    _Pragma("GCC diagnostic pop")
#else
    (void)object;
    return 0;
#endif
}

/* Runs the reads that follow `group`.  0, or how many operations after it the failing one stands. */
static inline Py_ssize_t
run_dict_group(Op *group, PyObject *dict, PyObject **regs, int holds)
{
    Op *last = group + group->number;
    uint64_t version = dict_version(dict);
    if (LIKELY(version == group->version && version != 0)) {
        for (Op *op = group + 1; op <= last; op++) {
            if (op->code == OP_DICT_ENTRY) {
                regs[op->dst] = op->cached;
                if (UNLIKELY(holds)) {
                    Py_INCREF(op->cached);
                }
            }
        }
        return 0;
    }
    for (Op *op = group + 1; op <= last; op++) {
        PyObject *value = load_dict_entry(dict, op->object, op->hash);
        if (op->code == OP_NO_KEY ? value != NULL || !PyDict_Check(dict) : value == NULL) {
            group->version = 0;
            return op - group;
        }
        if (op->code == OP_DICT_ENTRY) {
            regs[op->dst] = op->cached = value;
            if (UNLIKELY(holds)) {
                Py_INCREF(value);
            }
        }
    }
    group->version = version;
    return 0;
}

#endif
