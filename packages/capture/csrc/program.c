/* GuardProgram: the flat program that decides whether an entry serves a call, and loads the entry's inputs.
 *
 * It is made by guards/program.py from guards over origins.  A load puts the object an origin holds into a register; a
 * check compares a register with a payload.  Loads verify what they dereference (a dict is a dict, an index is in range), so no order of operations
 * can touch freed or mistyped memory; they give borrowed references, which stay valid because nothing between two
 * operations runs Python code.  A program with operations that may do so (GETATTR, CALL) holds every register instead.
 */
#include "core.h"
#include <stddef.h>
#include <string.h>

/* name, and whether the operation may run Python code.  guards/program.py reads the table through `operations()`. */
#define OPERATIONS(X)                                                                                                   \
    /* loads: regs[dst] = ... */                                                                                        \
    X(ARGUMENT, 0) X(CONSTANT, 0) X(FUNCTION, 0) X(WEAKREF, 0) X(INSTANCE_DICT, 0) X(DICT_ENTRY, 0) X(DICT_KEY_AT, 0)   \
    X(ITEM, 0) X(TYPE_OF, 0) X(TYPE_ATTRIBUTE, 0) X(FUNCTION_FIELD, 0) X(METHOD_PART, 0) X(CELL_CONTENTS, 0)            \
    X(GETATTR, 1) X(CALL, 1)                                                                                            \
    /* the next `number` reads of one dict, at once */                                                                  \
    X(DICT_GROUP, 0)                                                                                                    \
    /* loads of symbols: symbols[dst] = ... */                                                                          \
    X(SYMBOL_SIZE, 0) X(SYMBOL_STRIDE, 0) X(SYMBOL_INT, 0)                                                              \
    /* checks */                                                                                                        \
    X(IS, 0) X(IS_NOT, 0) X(WEAK_IS, 0) X(TYPE, 0) X(WEAK_TYPE, 0) X(EQUALS, 0) X(LENGTH, 0) X(KEYS, 0)            \
    X(HAS_KEY, 0) X(NO_KEY, 0) X(ALIAS, 0) X(NOT_ALIAS, 0) X(CELL_EMPTY, 0) X(TENSOR, 0) X(TORCH_STATE, 0)              \
    X(RELATION, 0) X(DISTINCT_MEMORY, 0)

enum {
#define X(name, runs_python) OP_##name,
    OPERATIONS(X)
#undef X
};

static const struct {
    const char *name;
    int runs_python;
} operation_table[] = {
#define X(name, runs_python) {#name, runs_python},
    OPERATIONS(X)
#undef X
};

typedef struct {
    uint16_t code;
    uint16_t dst;
    uint16_t src;
    uint16_t guard; /* index of the guard that failed when this operation fails */
    union {
        int64_t number;
        PyObject *cached; /* DICT_ENTRY in a group: what it last loaded, valid while the dict has the group's version */
    };
    PyObject *object; /* owned: the payload */
    union {
        Py_hash_t hash;
        uint64_t version; /* DICT_GROUP: that of the dict when all of the group held */
        TensorFacts *tensor;
        int64_t *relation;
        uint16_t *sources; /* registers of DISTINCT_MEMORY: first `number` that are written, then the others, then 0 */
    };
} Op;

struct Program {
    PyObject_HEAD
    Py_ssize_t count;
    Op *ops;
    Py_ssize_t input_count;
    uint16_t *inputs;
    Py_ssize_t register_count;
    Py_ssize_t symbol_count;
    Py_ssize_t argument_count;
    int holds;             /* registers own their references */
    int passes_arguments;  /* input i is argument i, for all arguments */
};

static PyObject *absent; /* origins.ABSENT: what TYPE_ATTRIBUTE loads when there is none */

/* ---- loads: borrowed references, NULL when the origin holds nothing (no error set) ---- */

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
    if (!PyDict_CheckExact(object)) {
        return NULL;
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

static inline PyObject *
load_function_field(PyObject *object, int64_t field)
{
    static const size_t offsets[] = {
        offsetof(PyFunctionObject, func_code), offsetof(PyFunctionObject, func_defaults), offsetof(PyFunctionObject, func_kwdefaults),
        offsetof(PyFunctionObject, func_closure), offsetof(PyFunctionObject, func_globals),
    };
    if (!PyFunction_Check(object)) {
        return NULL;
    }
    PyObject *value = *(PyObject **)((char *)object + offsets[field]);
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

/* Whether no written tensor shares its storage with another of the tensors.  Storages go through a small hash table. */
static NOINLINE int
check_distinct_memory(const Op *op, PyObject *const *regs)
{
    enum { SLOTS = 1024 };
    const void *table[SLOTS] = {NULL};
    for (int64_t i = 0; op->sources[i] != 0; i++) {
        const void *storage = tensor_storage(regs[op->sources[i]]);
        size_t slot = ((uintptr_t)storage >> 4) * 0x9E3779B97F4A7C15u >> 54;
        while (table[slot] != NULL && table[slot] != storage) {
            slot = (slot + 1) % SLOTS;
        }
        /* Written ones come first, so a storage met before matters only while those, or a match with one, are looked at. */
        if (storage == NULL || (table[slot] == storage && i < op->number)) {
            return 0;
        }
        if (i < op->number) {
            table[slot] = storage;
        }
        else if (table[slot] == storage) {
            return 0;
        }
    }
    return 1;
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

/* ---- relations over symbols: postfix programs ---- */

enum {
    R_CONSTANT, /* push the next word */
    R_SYMBOL,   /* push symbols[next word] */
    R_ADD, R_SUB, R_MUL, R_FLOORDIV, R_MOD, R_NEG, R_MIN, R_MAX, R_POW,
    R_EQ, R_NE, R_LT, R_LE, R_GT, R_GE, R_AND, R_OR, R_NOT,
    R_END,
};
#define RELATION_DEPTH 32

static inline int64_t
floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

/* The operation on two int64, or 0 for "overflows or is undefined" (the guard then fails, which is always safe). */
static int
relate(int64_t code, int64_t a, int64_t b, int64_t *result)
{
    switch (code) {
    case R_ADD: return !__builtin_add_overflow(a, b, result);
    case R_SUB: return !__builtin_sub_overflow(a, b, result);
    case R_MUL: return !__builtin_mul_overflow(a, b, result);
    case R_FLOORDIV:
        if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
        *result = floor_divide(a, b);
        return 1;
    case R_MOD:
        if (b == 0 || (a == INT64_MIN && b == -1)) return 0;
        *result = a - b * floor_divide(a, b);
        return 1;
    case R_POW:
        *result = 1;
        for (; b > 0; b--) {
            if (__builtin_mul_overflow(*result, a, result)) return 0;
        }
        return b == 0;
    case R_MIN: *result = a < b ? a : b; return 1;
    case R_MAX: *result = a > b ? a : b; return 1;
    case R_EQ: *result = a == b; return 1;
    case R_NE: *result = a != b; return 1;
    case R_LT: *result = a < b; return 1;
    case R_LE: *result = a <= b; return 1;
    case R_GT: *result = a > b; return 1;
    case R_GE: *result = a >= b; return 1;
    case R_AND: *result = a && b; return 1;
    case R_OR: *result = a || b; return 1;
    default: Py_UNREACHABLE();
    }
}

static int
check_relation(const int64_t *word, const int64_t *symbols)
{
    int64_t stack[RELATION_DEPTH];
    int top = -1;
    for (;;) {
        int64_t code = *word++;
        switch (code) {
        case R_END: return stack[0] != 0;
        case R_CONSTANT: stack[++top] = *word++; break;
        case R_SYMBOL: stack[++top] = symbols[*word++]; break;
        case R_NEG:
            if (stack[top] == INT64_MIN) return 0;
            stack[top] = -stack[top];
            break;
        case R_NOT: stack[top] = !stack[top]; break;
        default:
            top--;
            if (!relate(code, stack[top], stack[top + 1], &stack[top])) return 0;
        }
    }
}

/* A checked copy of the payload: every word known, every symbol in range, the stack neither under- nor overflowing. */
static int64_t *
relation_new(PyObject *payload, Py_ssize_t symbol_count)
{
    if (!PyTuple_Check(payload)) {
        PyErr_SetString(PyExc_TypeError, "RELATION expects a tuple of ints");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(payload);
    int64_t *words = PyMem_Calloc((size_t)count + 1, sizeof(int64_t));
    if (words == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    int depth = 0, valid = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(payload, i));
    }
    words[count] = R_END;
    for (Py_ssize_t i = 0; i < count && valid; i++) {
        int64_t code = words[i];
        if (code == R_CONSTANT || code == R_SYMBOL) {
            valid = ++i < count && (code == R_CONSTANT || (words[i] >= 0 && words[i] < symbol_count)) && ++depth <= RELATION_DEPTH;
        }
        else if (code == R_NEG || code == R_NOT) {
            valid = depth >= 1;
        }
        else {
            valid = code > R_SYMBOL && code < R_END && depth-- >= 2;
        }
    }
    if (PyErr_Occurred() || !valid || depth != 1) {
        PyMem_Free(words);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "RELATION: malformed postfix program");
        }
        return NULL;
    }
    return words;
}

/* ---- the interpreter ---- */

/* GUARDS_HOLD or the index of the operation that failed.  With `holds`, a loaded register owns its reference. */
static Py_ssize_t
run_ops(const Program *program, PyObject *function, PyObject *const *arguments, PyObject **regs, int64_t *symbols)
{
    const Op *end = program->ops + program->count;
    const int holds = program->holds;
    for (Op *op = program->ops; op < end; op++) {
        PyObject *source = regs[op->src];
        PyObject *loaded;
        int ok;
        switch (op->code) {
        case OP_ARGUMENT: loaded = arguments[op->number]; break;
        case OP_CONSTANT: loaded = op->object; break;
        case OP_FUNCTION: loaded = function; break;
        case OP_WEAKREF: loaded = weak_object(op->object); break;
        case OP_INSTANCE_DICT: loaded = load_instance_dict(source); break;
        case OP_DICT_ENTRY: loaded = load_dict_entry(source, op->object, op->hash); break;
        case OP_DICT_GROUP: {
            Py_ssize_t failed = run_dict_group(op, source, regs, holds);
            if (UNLIKELY(failed)) {
                return op - program->ops + failed;
            }
            op += op->number;
            continue;
        }
        case OP_DICT_KEY_AT: loaded = load_dict_key_at(source, op->number); break;
        case OP_ITEM: loaded = load_item(source, op->number); break;
        case OP_TYPE_OF: loaded = (PyObject *)Py_TYPE(source); break;
        case OP_TYPE_ATTRIBUTE: loaded = load_type_attribute(source, op->object); break;
        case OP_FUNCTION_FIELD: loaded = load_function_field(source, op->number); break;
        case OP_METHOD_PART: loaded = load_method_part(source, op->number); break;
        case OP_CELL_CONTENTS: loaded = PyCell_Check(source) ? PyCell_GET(source) : NULL; break;
        case OP_GETATTR:
        case OP_CALL:
            loaded = op->code == OP_CALL ? load_call(op, regs) : PyObject_GetAttr(source, op->object);
            if (loaded == NULL) {
                PyErr_Clear();
                return op - program->ops;
            }
            regs[op->dst] = loaded; /* these programs hold: the new reference is the register's */
            continue;
        case OP_SYMBOL_SIZE: ok = tensor_extent(source, op->number, 0, &symbols[op->dst]); goto checked;
        case OP_SYMBOL_STRIDE: ok = tensor_extent(source, op->number, 1, &symbols[op->dst]); goto checked;
        case OP_SYMBOL_INT: ok = load_symbol_int(source, &symbols[op->dst]); goto checked;
        case OP_IS: ok = source == op->object; goto checked;
        case OP_IS_NOT: ok = source != op->object; goto checked;
        case OP_WEAK_IS: ok = source == weak_object(op->object); goto checked;
        case OP_TYPE: ok = (PyObject *)Py_TYPE(source) == op->object; goto checked;
        case OP_WEAK_TYPE: ok = (PyObject *)Py_TYPE(source) == weak_object(op->object); goto checked;
        case OP_EQUALS: ok = constants_equal(source, op->object); goto checked;
        case OP_LENGTH: ok = check_length(source, op->number); goto checked;
        case OP_KEYS: ok = check_keys(source, op->object); goto checked;
        case OP_HAS_KEY: ok = check_has_key(source, op); goto checked;
        case OP_NO_KEY: ok = PyDict_Check(source) && !check_has_key(source, op); goto checked;
        case OP_ALIAS: ok = source == regs[op->number]; goto checked;
        case OP_NOT_ALIAS: ok = source != regs[op->number]; goto checked;
        case OP_CELL_EMPTY: ok = PyCell_Check(source) && PyCell_GET(source) == NULL; goto checked;
        case OP_TENSOR: ok = tensor_matches(op->tensor, source); goto checked;
        case OP_TORCH_STATE: ok = torch_state_matches(op->object); goto checked;
        case OP_RELATION: ok = check_relation(op->relation, symbols); goto checked;
        case OP_DISTINCT_MEMORY: ok = check_distinct_memory(op, regs); goto checked;
        default: Py_UNREACHABLE();
        }
        if (UNLIKELY(loaded == NULL)) {
            return op - program->ops;
        }
        regs[op->dst] = loaded;
        if (UNLIKELY(holds)) {
            Py_INCREF(loaded);
        }
        continue;
    checked:
        if (UNLIKELY(!ok)) {
            return op - program->ops;
        }
    }
    return GUARDS_HOLD;
}

static Py_ssize_t
run_in(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs, PyObject **regs, int64_t *symbols)
{
    regs[0] = NULL; /* register 0 is the source of operations that have none */
    if (program->holds) {
        memset(regs, 0, (size_t)program->register_count * sizeof(PyObject *));
    }
    Py_ssize_t failed = run_ops(program, function, arguments, regs, symbols);
    if (failed == GUARDS_HOLD && inputs != NULL) {
        for (Py_ssize_t i = 0; i < program->input_count; i++) {
            inputs[i] = Py_NewRef(regs[program->inputs[i]]);
        }
    }
    if (program->holds) {
        for (Py_ssize_t i = 0; i < program->register_count; i++) {
            Py_XDECREF(regs[i]);
        }
    }
    return failed == GUARDS_HOLD ? GUARDS_HOLD : program->ops[failed].guard;
}

#define SMALL 48
#define MEDIUM 640

/* Registers stand in frames of their own, which are gone before the entry is called: recursion through entries stays cheap. */
static NOINLINE Py_ssize_t
run_small(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    PyObject *regs[SMALL];
    int64_t symbols[SMALL];
    return run_in(program, function, arguments, inputs, regs, symbols);
}

static NOINLINE Py_ssize_t
run_medium(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    PyObject *regs[MEDIUM];
    int64_t symbols[SMALL];
    return run_in(program, function, arguments, inputs, regs, symbols);
}

static NOINLINE Py_ssize_t
run_large(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    size_t registers = (size_t)program->register_count * sizeof(PyObject *);
    char *memory = PyMem_Malloc(registers + (size_t)program->symbol_count * sizeof(int64_t));
    if (memory == NULL) {
        return 0; /* as if the first guard had failed: the miss handler runs, and reports the lack of memory itself */
    }
    Py_ssize_t failed = run_in(program, function, arguments, inputs, (PyObject **)memory, (int64_t *)(memory + registers));
    PyMem_Free(memory);
    return failed;
}

Py_ssize_t
program_run(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    Py_INCREF(program);
    Py_ssize_t failed;
    if (program->symbol_count > SMALL || program->register_count > MEDIUM) {
        failed = run_large(program, function, arguments, inputs);
    }
    else if (program->register_count > SMALL) {
        failed = run_medium(program, function, arguments, inputs);
    }
    else {
        failed = run_small(program, function, arguments, inputs);
    }
    Py_DECREF(program);
    return failed;
}

int
program_takes(const Program *program, Py_ssize_t count)
{
    return program->argument_count == count;
}

Py_ssize_t
program_input_count(const Program *program)
{
    return program->input_count;
}

int
program_passes_arguments(const Program *program, Py_ssize_t count)
{
    return program->passes_arguments && program->input_count == count;
}

/* ---- the Python type ---- */

static int
op_registers_valid(const Program *program, const Op *op)
{
    int symbol = op->code == OP_SYMBOL_SIZE || op->code == OP_SYMBOL_STRIDE || op->code == OP_SYMBOL_INT;
    if (op->dst >= (symbol ? program->symbol_count : program->register_count) || op->src >= program->register_count) {
        return 0;
    }
    switch (op->code) {
    case OP_ARGUMENT: return op->number >= 0 && op->number < program->argument_count;
    case OP_ITEM: return op->number >= 0;
    case OP_FUNCTION_FIELD: return op->number >= 0 && op->number <= 4;
    case OP_ALIAS:
    case OP_NOT_ALIAS: return op->number >= 0 && op->number < program->register_count;
    default: return 1;
    }
}

#define MAX_DISTINCT 512 /* half of the hash table */

static uint16_t *
sources_new(const Program *program, PyObject *payload, int64_t written)
{
    Py_ssize_t count = PyTuple_CheckExact(payload) ? PyTuple_GET_SIZE(payload) : -1;
    if (count < 0 || written < 0 || written > count || written > MAX_DISTINCT) {
        PyErr_SetString(PyExc_ValueError, "DISTINCT_MEMORY: malformed payload");
        return NULL;
    }
    uint16_t *sources = PyMem_Calloc((size_t)count + 1, sizeof(uint16_t));
    for (Py_ssize_t i = 0; sources != NULL && i < count; i++) {
        long source = PyLong_AsLong(PyTuple_GET_ITEM(payload, i));
        if (source < 1 || source >= program->register_count) {
            PyErr_SetString(PyExc_ValueError, "DISTINCT_MEMORY: register out of range");
            PyMem_Free(sources);
            return NULL;
        }
        sources[i] = (uint16_t)source;
    }
    return sources == NULL ? (uint16_t *)PyErr_NoMemory() : sources;
}

/* Fills what an operation derives from its payload. */
static int
op_prepare(const Program *program, Op *op)
{
    switch (op->code) {
    case OP_DICT_ENTRY:
    case OP_HAS_KEY:
    case OP_NO_KEY:
        op->hash = PyObject_Hash(op->object);
        return op->hash == -1 ? -1 : 0;
    case OP_TENSOR:
        op->tensor = tensor_facts_new(op->object);
        return op->tensor == NULL ? -1 : 0;
    case OP_RELATION:
        op->relation = relation_new(op->object, program->symbol_count);
        return op->relation == NULL ? -1 : 0;
    case OP_DISTINCT_MEMORY:
        op->sources = sources_new(program, op->object, op->number);
        return op->sources == NULL ? -1 : 0;
    case OP_WEAKREF:
    case OP_WEAK_IS:
    case OP_WEAK_TYPE:
        if (PyWeakref_CheckRef(op->object)) return 0;
        break;
    case OP_TORCH_STATE:
        if (PyBytes_CheckExact(op->object)) return 0;
        break;
    case OP_KEYS:
        if (PyTuple_CheckExact(op->object)) return 0;
        break;
    case OP_GETATTR:
    case OP_TYPE_ATTRIBUTE:
        if (PyUnicode_CheckExact(op->object)) return 0;
        break;
    case OP_CALL:
        if (PyTuple_CheckExact(op->object) && PyTuple_GET_SIZE(op->object) == 2 && PyTuple_CheckExact(PyTuple_GET_ITEM(op->object, 1)) &&
            PyTuple_GET_SIZE(PyTuple_GET_ITEM(op->object, 1)) <= 4) {
            return 0;
        }
        break;
    default: return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s: payload of a wrong type", operation_table[op->code].name);
    return -1;
}

static int
fill_ops(Program *program, PyObject *ops)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ops); i++) {
        unsigned int code, dst, src, guard;
        long long number;
        PyObject *object;
        Op *op = &program->ops[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(ops, i), "IIIILO:operation", &code, &dst, &src, &guard, &number, &object)) {
            return -1;
        }
        if (code >= COUNT_OF(operation_table) || dst > MAX_REGISTERS || src > MAX_REGISTERS || guard > MAX_REGISTERS) {
            PyErr_Format(PyExc_ValueError, "operation %zd: out of range", i);
            return -1;
        }
        *op = (Op){.code = (uint16_t)code, .dst = (uint16_t)dst, .src = (uint16_t)src, .guard = (uint16_t)guard, .number = number};
        op->object = Py_NewRef(object);
        program->count = i + 1;
        program->holds |= operation_table[code].runs_python;
        if (!op_registers_valid(program, op)) {
            PyErr_Format(PyExc_ValueError, "operation %zd (%s): operand out of range", i, operation_table[code].name);
            return -1;
        }
        if (op_prepare(program, op) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Every register read must have been written by an earlier operation: then no execution reads an unset one. */
static int
verify_written(const Program *program)
{
    char *written = PyMem_Calloc((size_t)program->register_count, 1);
    Py_ssize_t bad = -1;
    if (written == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < program->count && bad < 0; i++) {
        const Op *op = &program->ops[i];
        int sourceless = op->code <= OP_WEAKREF || op->code == OP_CALL || op->code == OP_TORCH_STATE || op->code == OP_RELATION ||
                         op->code == OP_DISTINCT_MEMORY;
        if ((!sourceless && !written[op->src]) || ((op->code == OP_ALIAS || op->code == OP_NOT_ALIAS) && !written[op->number])) {
            bad = i;
        }
        for (const uint16_t *source = op->code == OP_DISTINCT_MEMORY ? op->sources : NULL; source != NULL && *source != 0; source++) {
            bad = written[*source] ? bad : i;
        }
        if (op->code == OP_CALL) {
            PyObject *sources = PyTuple_GET_ITEM(op->object, 1);
            for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(sources); j++) {
                long source = PyLong_AsLong(PyTuple_GET_ITEM(sources, j));
                if (source < 0 || source >= program->register_count || !written[source]) {
                    bad = i;
                }
            }
        }
        if (op->code <= OP_CALL) {
            if (written[op->dst]) {
                bad = i; /* single assignment: a holding program would leak the first value */
            }
            written[op->dst] = 1;
        }
    }
    for (Py_ssize_t i = 0; i < program->count && bad < 0; i++) {
        const Op *group = &program->ops[i];
        if (group->code == OP_DICT_GROUP && (group->number < 1 || group->number >= program->count - i)) {
            bad = i;
        }
        for (int64_t j = 1; group->code == OP_DICT_GROUP && bad < 0 && j <= group->number; j++) {
            int read = group[j].code == OP_DICT_ENTRY || group[j].code == OP_HAS_KEY || group[j].code == OP_NO_KEY;
            bad = read && group[j].src == group->src && PyUnicode_CheckExact(group[j].object) ? -1 : i;
        }
    }
    for (Py_ssize_t i = 0; i < program->input_count && bad < 0; i++) {
        if (program->inputs[i] >= program->register_count || !written[program->inputs[i]]) {
            bad = program->count;
        }
    }
    PyMem_Free(written);
    if (bad >= 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "operation %zd: register read before it is written, or written twice, or a malformed group", bad);
    }
    return bad >= 0 ? -1 : 0;
}

static int
fill_inputs(Program *program, PyObject *inputs)
{
    for (Py_ssize_t i = 0; i < program->input_count; i++) {
        long source = PyLong_AsLong(PyTuple_GET_ITEM(inputs, i));
        if (source < 0 || source >= program->register_count) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "input register out of range");
            }
            return -1;
        }
        program->inputs[i] = (uint16_t)source;
    }
    return 0;
}

static int
find_passed_arguments(const Program *program)
{
    if (program->input_count == 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < program->input_count; i++) {
        int found = 0;
        for (Py_ssize_t j = 0; j < program->count; j++) {
            const Op *op = &program->ops[j];
            found |= op->code == OP_ARGUMENT && op->dst == program->inputs[i] && op->number == i;
        }
        if (!found) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ops", "inputs", "arguments", "registers", "symbols", NULL};
    PyObject *ops, *inputs;
    Py_ssize_t arguments, registers, symbols;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!nnn:GuardProgram", names, &PyTuple_Type, &ops, &PyTuple_Type, &inputs,
                                     &arguments, &registers, &symbols)) {
        return NULL;
    }
    if (registers < 1 || registers > MAX_REGISTERS || symbols < 0 || symbols > MAX_REGISTERS) {
        PyErr_SetString(PyExc_ValueError, "too many registers or symbols");
        return NULL;
    }
    Program *program = (Program *)type->tp_alloc(type, 0);
    if (program == NULL) {
        return NULL;
    }
    program->argument_count = arguments;
    program->register_count = registers;
    program->symbol_count = symbols;
    program->input_count = PyTuple_GET_SIZE(inputs);
    program->ops = PyMem_Calloc((size_t)PyTuple_GET_SIZE(ops) + 1, sizeof(Op));
    program->inputs = PyMem_Calloc((size_t)program->input_count + 1, sizeof(uint16_t));
    if (program->ops == NULL || program->inputs == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    if (fill_ops(program, ops) < 0 || fill_inputs(program, inputs) < 0 || verify_written(program) < 0) {
        goto failed;
    }
    program->passes_arguments = find_passed_arguments(program);
    return (PyObject *)program;
failed:
    Py_DECREF(program);
    return NULL;
}

static int
program_traverse(Program *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->ops[i].object);
    }
    return 0;
}

static void
program_dealloc(Program *self)
{
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Op *op = &self->ops[i];
        if (op->code == OP_TENSOR || op->code == OP_RELATION || op->code == OP_DISTINCT_MEMORY) {
            PyMem_Free(op->tensor); /* or what shares its union */
        }
        Py_XDECREF(op->object);
    }
    PyMem_Free(self->ops);
    PyMem_Free(self->inputs);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
check_call(Program *self, PyObject *args, PyObject **function, PyObject **arguments)
{
    if (!PyArg_ParseTuple(args, "OO!", function, &PyTuple_Type, arguments)) {
        return -1;
    }
    if (PyTuple_GET_SIZE(*arguments) != self->argument_count) {
        PyErr_Format(PyExc_ValueError, "expected %zd arguments, got %zd", self->argument_count, PyTuple_GET_SIZE(*arguments));
        return -1;
    }
    return 0;
}

static PyObject *
program_failed(Program *self, PyObject *args)
{
    PyObject *function, *arguments;
    if (check_call(self, args, &function, &arguments) < 0) {
        return NULL;
    }
    Py_ssize_t failed = program_run(self, function, &PyTuple_GET_ITEM(arguments, 0), NULL);
    if (failed == GUARDS_HOLD) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSsize_t(failed);
}

static PyObject *
program_load(Program *self, PyObject *args)
{
    PyObject *function, *arguments;
    if (check_call(self, args, &function, &arguments) < 0) {
        return NULL;
    }
    PyObject *inputs = PyTuple_New(self->input_count);
    if (inputs == NULL) {
        return NULL;
    }
    if (program_run(self, function, &PyTuple_GET_ITEM(arguments, 0), &PyTuple_GET_ITEM(inputs, 0)) != GUARDS_HOLD) {
        Py_DECREF(inputs);
        Py_RETURN_NONE;
    }
    return inputs;
}

static PyMethodDef program_methods[] = {
    {"failed", (PyCFunction)program_failed, METH_VARARGS, "failed(function, arguments) -> index of the first guard that fails, or None."},
    {"load", (PyCFunction)program_load, METH_VARARGS, "load(function, arguments) -> the inputs as a tuple, or None when a guard fails."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Program_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_capture._core.GuardProgram",
    .tp_doc = "A flat program of loads and checks; see guards/program.py.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_methods = program_methods,
};

/* {operation name: code}, and the relation codes under "R_...". */
static PyObject *
operations(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static const char *relations[] = {"R_CONSTANT", "R_SYMBOL", "R_ADD", "R_SUB", "R_MUL", "R_FLOORDIV", "R_MOD", "R_NEG", "R_MIN", "R_MAX",
                                      "R_POW", "R_EQ", "R_NE", "R_LT", "R_LE", "R_GT", "R_GE", "R_AND", "R_OR", "R_NOT"};
    _Static_assert(COUNT_OF(relations) == R_END, "one name a relation code");
    PyObject *table = PyDict_New();
    for (size_t i = 0; table != NULL && i < COUNT_OF(operation_table) + COUNT_OF(relations); i++) {
        size_t r = i - COUNT_OF(operation_table);
        const char *name = i < COUNT_OF(operation_table) ? operation_table[i].name : relations[r];
        PyObject *code = PyLong_FromSize_t(i < COUNT_OF(operation_table) ? i : r);
        if (code == NULL || PyDict_SetItemString(table, name, code) < 0) {
            Py_CLEAR(table);
        }
        Py_XDECREF(code);
    }
    return table;
}

static PyObject *
set_absent(PyObject *Py_UNUSED(module), PyObject *value)
{
    Py_XSETREF(absent, Py_NewRef(value));
    Py_RETURN_NONE;
}

PyMethodDef program_functions[] = {
    {"operations", operations, METH_NOARGS, "{name: code} of the operations of a GuardProgram."},
    {"set_absent", set_absent, METH_O, "Give the object that stands for a missing type attribute (origins.ABSENT)."},
    {NULL, NULL, 0, NULL},
};
