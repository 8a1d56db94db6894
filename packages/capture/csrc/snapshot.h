/* Snapshot: what a GuardProgram read on a call it held for, as words of memory that prove the same of the next call.
 *
 *     r3 = INSTANCE_DICT r2         the word at &r2->dict is r3, after the word at &r2->ob_type
 *     r4 = DICT_ENTRY r3 'weight'   the version tag of r3 is what it was: all that was read of r3 stands, and is alive
 *     WEAK_TYPE r4                  the word at &r4->ob_type
 *     TENSOR r4                     remains an operation, as all that is no comparison of words
 *
 * The words stand in the order of the program, so each lies in an object that words before it prove alive.  A word that differs
 * says only that the snapshot is old: the program itself then decides, and a new snapshot is taken.  A register whose words keep changing
 * (a counter beside the parameters) is read by operations from then on.  A snapshot owns nothing of the user's.
 *
 * Until CPython 3.13 a dict's version tag says all that was read of it.  3.13 has no sound tags, and its first release no sound watchers:
 * there each entry is a word, in the dict's table or in the object's inline values (`prove_entry`).  Elsewhere programs run as they are.
 * Included by program.c alone.
 */
#ifndef FLAMBEAU_CAPTURE_SNAPSHOT_H
#define FLAMBEAU_CAPTURE_SNAPSHOT_H

#include "operations.h"

#define HAS_DICT_VERSIONS (PY_VERSION_HEX < 0x030D0000)
#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define HAS_ENTRY_WORDS 1
#define Py_BUILD_CORE 1
_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"")
#include "internal/pycore_dict.h"
_Pragma("GCC diagnostic pop")
#undef Py_BUILD_CORE
#else
#define HAS_ENTRY_WORDS 0
#endif
#define HAS_SNAPSHOTS (HAS_DICT_VERSIONS || HAS_ENTRY_WORDS)
/* Shorter programs cost less than the bookkeeping. */
#define SNAPSHOT_MINIMUM 64
/* In the `guard` of a snapshot's operation: its failing says nothing of the guards. */
#define OUTDATED UINT16_MAX
/* How often the words of a register may be outdated before operations read it. */
#define PATIENCE 2

/* What is known of a register while a snapshot is taken. */
enum {
    STABLE = 1,     /* its object is at the same address as then */
    SAME = 2,       /* and is the same object, which has been alive since */
    TYPE_PROVED = 4,
    VERSION_PROVED = 8, /* or the table of the dict */
    LATE = 16,      /* loaded by an operation that may run Python code, or from such a register: after all else */
    NEEDED = 32,    /* operations or inputs read it */
};

struct Word {
    const uint64_t *address;
    uint64_t value;
};

typedef struct {
    const Program *program;
    PyObject **regs;
    uint8_t *known;
    uint16_t *owners;    /* of registers that hold an instance dict: the register of the instance */
    Program *made;       /* NULL while it is only found out which registers are needed */
    Op *late;
    Py_ssize_t late_count;
    int late_symbols;    /* a symbol is loaded late: relations are checked behind it */
    Py_ssize_t word_count;
    int failed;
} Taking;

static inline int
usable(const Taking *taking, uint16_t reg)
{
    return (taking->known[reg] & (STABLE | LATE)) == STABLE && taking->program->outdated[reg] < PATIENCE;
}

/* An operation of the snapshot. */
static void
keep_op(Taking *taking, const Op *op)
{
    if (taking->made != NULL) {
        taking->made->ops[taking->made->count++] = *op;
    }
}

static void
add_word(Taking *taking, uint16_t reg, const void *address, const void *value)
{
    Program *made = taking->made;
    if (made != NULL) {
        Op *last = made->count > 0 ? &made->ops[made->count - 1] : NULL;
        if (last == NULL || last->code != OP_WORDS) {
            last = &made->ops[made->count++];
            *last = (Op){.code = OP_WORDS, .guard = OUTDATED, .words = &made->words[taking->word_count]};
        }
        made->words[taking->word_count] = (Word){address, (uint64_t)(uintptr_t)value};
        made->word_registers[taking->word_count] = reg;
        last->number++;
        taking->failed |= *(const uint64_t *)address != (uint64_t)(uintptr_t)value;
    }
    taking->word_count++;
}

/* The register's object is of the type that it was of, which is alive. */
static void
prove_type(Taking *taking, uint16_t reg)
{
    PyObject *object = taking->regs[reg];
    PyTypeObject *type = Py_TYPE(object);
    int may_change = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object);
    if ((taking->known[reg] & TYPE_PROVED) || ((taking->known[reg] & SAME) && !may_change)) {
        return;
    }
    taking->known[reg] |= TYPE_PROVED;
    add_word(taking, reg, &object->ob_type, type);
    Program *made = taking->made;
    if (made == NULL || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(made->types); i++) {
        if (((PyWeakReference *)PyList_GET_ITEM(made->types, i))->wr_object == (PyObject *)type) {
            return;
        }
    }
    PyObject *reference = PyWeakref_NewRef((PyObject *)type, NULL);
    if (reference == NULL || PyList_Append(made->types, reference) < 0) {
        PyErr_Clear();
        taking->failed = 1;
    }
    else {
        add_word(taking, reg, &((PyWeakReference *)reference)->wr_object, type);
    }
    Py_XDECREF(reference);
}

/* Whether a register holds a dict whose version tag is a word now. */
static int
prove_version(Taking *taking, uint16_t reg)
{
    PyObject *dict = taking->regs[reg];
    if (!usable(taking, reg) || !PyDict_Check(dict) || dict_version(dict) == 0) {
        return 0;
    }
    if (!(taking->known[reg] & VERSION_PROVED)) {
        prove_type(taking, reg);
        taking->known[reg] |= VERSION_PROVED;
#if HAS_DICT_VERSIONS
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
        add_word(taking, reg, &((PyDictObject *)dict)->ma_version_tag, (void *)(uintptr_t)dict_version(dict));
        _Pragma("GCC diagnostic pop")
#endif
    }
    return 1;
}

#if HAS_ENTRY_WORDS
/* The entry of a dict under an interned string, as words; 0 where it is to be read by an operation.
 *
 *     split table     ma_keys, ma_values, values[i]                    the keys are the type's own: an index stays its key's as long as the type lives
 *     own table       ma_keys, its shape, entries[i].me_key, .me_value
 *
 * That there is none: values[i] is NULL, or the type's keys have not grown.
 */
static int
prove_entry(Taking *taking, const Op *op)
{
    PyDictObject *dict = (PyDictObject *)taking->regs[op->src];
    if (!usable(taking, op->src) || !PyDict_Check(dict) || !PyUnicode_CheckExact(op->object)) {
        return 0;
    }
    PyDictKeysObject *keys = dict->ma_keys;
    PyDictValues *values = dict->ma_values;
    uint16_t owner = taking->owners[op->src];
    PyTypeObject *type = values == NULL || owner == 0 ? NULL : Py_TYPE(taking->regs[owner]);
    if (keys->dk_kind == DICT_KEYS_GENERAL || (values == NULL) != (keys->dk_kind != DICT_KEYS_SPLIT) ||
        (values != NULL && !(type != NULL && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) && ((PyHeapTypeObject *)type)->ht_cached_keys == keys))) {
        return 0;
    }
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    Py_ssize_t at = 0;
    while (at < keys->dk_nentries && entries[at].me_key != op->object) {
        at++;
    }
    int found = at < keys->dk_nentries;
    PyObject *value = load_dict_entry((PyObject *)dict, op->object, op->hash);
    PyObject **slot = !found ? NULL : values != NULL ? &values->values[at] : &entries[at].me_value;
    if (found ? *slot != value : (value != NULL || values == NULL)) {
        return 0;
    }
    if (!(taking->known[op->src] & VERSION_PROVED)) {
        prove_type(taking, op->src);
        taking->known[op->src] |= VERSION_PROVED;
        add_word(taking, op->src, &dict->ma_keys, keys);
        if (values != NULL) {
            add_word(taking, op->src, &dict->ma_values, values);
        }
        else {
            const char *shape = (const char *)keys + offsetof(PyDictKeysObject, dk_log2_size);
            uintptr_t word;
            memcpy(&word, shape, sizeof(word));
            add_word(taking, op->src, shape, (void *)word);
        }
    }
    if (found && values == NULL) {
        add_word(taking, op->src, &entries[at].me_key, op->object);
    }
    if (found) {
        add_word(taking, op->src, slot, value);
    }
    else {
        add_word(taking, op->src, &keys->dk_nentries, (void *)keys->dk_nentries);
    }
    return 1;
}
#endif

static void
add_size(Taking *taking, uint16_t reg)
{
    prove_type(taking, reg);
    PyObject *object = taking->regs[reg];
    add_word(taking, reg, &((PyVarObject *)object)->ob_size, (void *)(uintptr_t)Py_SIZE(object));
}

/* What is known of the value that an operation loads, by words; 0 when it is to be loaded by the operation itself. */
static int
load_by_words(Taking *taking, const Op *op)
{
    uint16_t src = op->src;
    PyObject *source = taking->regs[src], *value = taking->regs[op->dst];
    if (op->code == OP_CONSTANT) {
        return STABLE | SAME;
    }
    if (op->code == OP_WEAKREF) {
        add_word(taking, op->dst, &((PyWeakReference *)op->object)->wr_object, value);
        return STABLE | SAME;
    }
    if (op->code <= OP_WEAKREF || !usable(taking, src)) {
        return 0;
    }
    switch (op->code) {
    case OP_INSTANCE_DICT: {
        PyObject **slot = _PyObject_GetDictPtr(source);
        if (slot == NULL || *slot != value || Py_TYPE(source)->tp_itemsize != 0) {
            return 0;
        }
        prove_type(taking, src);
        add_word(taking, src, slot, value);
        taking->owners[op->dst] = src;
        return STABLE | TYPE_PROVED; /* a dict, whatever its type: that is all that its entries need */
    }
    case OP_DICT_ENTRY:
#if HAS_ENTRY_WORDS
        return prove_entry(taking, op) ? STABLE : 0;
#endif
        if (!(PyUnicode_CheckExact(op->object) || PyLong_CheckExact(op->object)) || !prove_version(taking, src)) {
            return 0;
        }
        taking->failed |= load_dict_entry(source, op->object, op->hash) != value;
        return STABLE | SAME;
    case OP_ITEM:
        if (PyTuple_Check(source)) {
            if (taking->known[src] & SAME) {
                return STABLE | SAME;
            }
            add_size(taking, src);
            add_word(taking, src, &PyTuple_GET_ITEM(source, op->number), value);
            return STABLE;
        }
        add_size(taking, src);
        taking->failed |= op->number >= Py_SIZE(source);
        add_word(taking, src, &((PyListObject *)source)->ob_item, ((PyListObject *)source)->ob_item);
        if (!taking->failed) {
            add_word(taking, src, &PyList_GET_ITEM(source, op->number), value);
        }
        return STABLE;
    case OP_TYPE_OF:
        prove_type(taking, src);
        return STABLE | SAME;
    case OP_FUNCTION_FIELD: {
        prove_type(taking, src);
        PyObject **field = function_field(source, op->number);
        add_word(taking, src, field, *field);
        taking->failed |= (*field == NULL ? Py_None : *field) != value;
        return STABLE;
    }
    case OP_CELL_CONTENTS:
        prove_type(taking, src);
        add_word(taking, src, &((PyCellObject *)source)->ob_ref, value);
        return STABLE;
    default: return 0;
    }
}

/* Whether words (or what they prove already) say all that a check says. */
static int
check_by_words(Taking *taking, const Op *op)
{
    uint16_t src = op->src;
    if (!usable(taking, src)) {
        return 0;
    }
    PyObject *source = taking->regs[src];
    int same = taking->known[src] & SAME;
    switch (op->code) {
    case OP_IS: return source == op->object; /* which the program keeps alive */
    case OP_IS_NOT: return source != op->object;
    case OP_WEAK_IS:
        if (!same) {
            add_word(taking, src, &((PyWeakReference *)op->object)->wr_object, source);
        }
        return 1;
    case OP_TYPE:
    case OP_WEAK_TYPE: prove_type(taking, src); return 1;
    case OP_EQUALS:
        return source == op->object || (same && (PyLong_CheckExact(source) || PyFloat_CheckExact(source) || PyUnicode_CheckExact(source)));
    case OP_LENGTH:
        if (PyTuple_Check(source) && same) {
            return 1;
        }
        if (PyList_Check(source) || PyTuple_Check(source)) {
            add_size(taking, src);
            return 1;
        }
        if (PyDict_Check(source)) {
            prove_type(taking, src);
            add_word(taking, src, &((PyDictObject *)source)->ma_used, (void *)(uintptr_t)op->number);
            return 1;
        }
        return 0;
    case OP_KEYS: return PyDict_CheckExact(source) && prove_version(taking, src) && check_keys(source, op->object);
    case OP_HAS_KEY:
    case OP_NO_KEY:
#if HAS_ENTRY_WORDS
        return check_has_key(source, op) == (op->code == OP_HAS_KEY) && prove_entry(taking, op);
#endif
        return (PyUnicode_CheckExact(op->object) || PyLong_CheckExact(op->object)) && prove_version(taking, src) &&
               check_has_key(source, op) == (op->code == OP_HAS_KEY);
    case OP_ALIAS: return usable(taking, (uint16_t)op->number) && source == taking->regs[op->number];
    case OP_NOT_ALIAS: return usable(taking, (uint16_t)op->number) && source != taking->regs[op->number];
    default: return 0;
    }
}

static void
need(Taking *taking, const Op *op)
{
    taking->known[op->src] |= NEEDED;
    if (op->code == OP_ALIAS || op->code == OP_NOT_ALIAS) {
        taking->known[op->number] |= NEEDED;
    }
    for (const uint16_t *source = op->code == OP_DISTINCT_MEMORY ? op->sources : NULL; source != NULL && *source != 0; source++) {
        taking->known[*source] |= NEEDED;
    }
    for (Py_ssize_t i = 0; op->code == OP_CALL && i < PyTuple_GET_SIZE(PyTuple_GET_ITEM(op->object, 1)); i++) {
        taking->known[PyLong_AsLong(PyTuple_GET_ITEM(PyTuple_GET_ITEM(op->object, 1), i))] |= NEEDED;
    }
}

/* Whether an operation reads a register that is loaded late. */
static int
reads_late(const Taking *taking, const Op *op)
{
    int late = taking->known[op->src];
    if (op->code == OP_ALIAS || op->code == OP_NOT_ALIAS) {
        late |= taking->known[op->number];
    }
    for (const uint16_t *source = op->code == OP_DISTINCT_MEMORY ? op->sources : NULL; source != NULL && *source != 0; source++) {
        late |= taking->known[*source];
    }
    return op->code == OP_CALL || op->code == OP_GETATTR || (op->code == OP_RELATION && taking->late_symbols) || late & LATE;
}

static void
take_op(Taking *taking, const Op *op)
{
    uint8_t *known = taking->known;
    int loads = op->code < OP_DICT_GROUP;
    if (op->code == OP_DICT_GROUP) {
        return; /* its reads are words, or of a dict that changes */
    }
    if (!reads_late(taking, op)) {
        if (loads) {
            int found = load_by_words(taking, op);
            if (found) {
                known[op->dst] |= found;
                if (known[op->dst] & NEEDED) {
                    keep_op(taking, &(Op){.code = OP_CONSTANT, .dst = op->dst, .guard = op->guard, .object = taking->regs[op->dst]});
                }
                return;
            }
        }
        else if (check_by_words(taking, op)) {
            return;
        }
    }
    need(taking, op);
    if (reads_late(taking, op)) { /* after all else: what it calls may free what words stand in */
        if (loads) {
            known[op->dst] |= LATE;
        }
        taking->late_symbols |= op->code == OP_SYMBOL_SIZE || op->code == OP_SYMBOL_STRIDE || op->code == OP_SYMBOL_INT;
        if (taking->made != NULL) {
            taking->late[taking->late_count++] = *op;
        }
        return;
    }
    keep_op(taking, op);
    if (loads && taking->program->outdated[op->dst] < PATIENCE) {
        known[op->dst] |= STABLE; /* what follows rests on its being the same */
        keep_op(taking, &(Op){.code = OP_IS, .dst = op->dst, .src = op->dst, .guard = OUTDATED, .object = taking->regs[op->dst]});
    }
}

void
snapshot_free(Program *snapshot)
{
    if (snapshot != NULL) {
        PyMem_Free(snapshot->ops);
        PyMem_Free(snapshot->inputs);
        PyMem_Free(snapshot->words);
        PyMem_Free(snapshot->word_registers);
        Py_XDECREF(snapshot->types);
        PyMem_Free(snapshot);
    }
}

static Program *
snapshot_new(const Program *program, Py_ssize_t words)
{
    Program *made = PyMem_Calloc(1, sizeof(Program));
    if (made == NULL) {
        return NULL;
    }
    made->ops = PyMem_Calloc(3 * (size_t)program->count + 1, sizeof(Op));
    made->words = PyMem_Calloc((size_t)words + 1, sizeof(Word));
    made->word_registers = PyMem_Calloc((size_t)words + 1, sizeof(uint16_t));
    made->inputs = PyMem_Calloc((size_t)program->input_count + 1, sizeof(uint16_t));
    made->types = PyList_New(0);
    if (made->ops == NULL || made->words == NULL || made->word_registers == NULL || made->inputs == NULL || made->types == NULL) {
        PyErr_Clear();
        snapshot_free(made);
        return NULL;
    }
    memcpy(made->inputs, program->inputs, (size_t)program->input_count * sizeof(uint16_t));
    made->input_count = program->input_count;
    made->register_count = program->register_count;
    made->symbol_count = program->symbol_count;
    made->argument_count = program->argument_count;
    made->holds = program->holds;
    return made;
}

/* Which registers are not worth words from the start: arguments, and what they hold, unless they have attributes (`self`). */
static void
expect_changes(const Program *program)
{
    for (Py_ssize_t i = 0; i < program->count; i++) {
        const Op *op = &program->ops[i];
        if (op->code == OP_INSTANCE_DICT) {
            program->outdated[op->src] = 0;
        }
        else if (op->code == OP_ARGUMENT || (op->code <= OP_CALL && op->code > OP_WEAKREF && program->outdated[op->src] > 0)) {
            program->outdated[op->dst] = PATIENCE;
        }
    }
}

/* Remembers which register's words made a snapshot outdated: operation `failed`. */
static void
blame(Program *program, const Program *snapshot, Py_ssize_t failed)
{
    const Op *op = &snapshot->ops[failed];
    uint16_t reg = op->dst;
    if (op->code == OP_WORDS) {
        const Word *word = op->words, *last = word + op->number - 1;
        while (word < last && *word->address == word->value) {
            word++;
        }
        reg = snapshot->word_registers[word - snapshot->words];
    }
    program->outdated[reg]++; /* it is below PATIENCE, or there were no words */
}

static inline int
words_stand(const Op *op)
{
    for (const Word *word = op->words, *end = word + op->number; word < end; word++) {
        if (UNLIKELY(*word->address != word->value)) {
            return 0;
        }
    }
    return 1;
}

static void
take_ops(Taking *taking)
{
    for (Py_ssize_t i = 0; i < taking->program->count; i++) {
        take_op(taking, &taking->program->ops[i]);
    }
}

/* From the registers of a run that held, still alive.  NULL: there is none to be had now. */
static NOINLINE Program *
snapshot_take(const Program *program, PyObject **regs)
{
    Taking taking = {.program = program, .regs = regs};
    Py_ssize_t registers = program->register_count;
    taking.known = PyMem_Calloc((size_t)registers, 1);
    taking.owners = PyMem_Calloc((size_t)registers, sizeof(uint16_t));
    taking.late = PyMem_Calloc((size_t)program->count + 1, sizeof(Op));
    int collecting = PyGC_Disable(); /* a collection could run user code under borrowed registers */
    if (taking.known != NULL && taking.owners != NULL && taking.late != NULL) {
        for (Py_ssize_t i = 0; i < program->input_count; i++) {
            taking.known[program->inputs[i]] |= NEEDED;
        }
        take_ops(&taking);
        for (Py_ssize_t i = 0; i < registers; i++) {
            taking.known[i] &= NEEDED;
        }
        /* A type's word has a second one beside it. */
        taking.made = snapshot_new(program, 2 * taking.word_count);
        taking.word_count = 0;
        if (taking.made != NULL) {
            take_ops(&taking);
            memcpy(&taking.made->ops[taking.made->count], taking.late, (size_t)taking.late_count * sizeof(Op));
            taking.made->count += taking.late_count;
            Op *fitted = PyMem_Realloc(taking.made->ops, ((size_t)taking.made->count + 1) * sizeof(Op));
            taking.made->ops = fitted == NULL ? taking.made->ops : fitted;
        }
    }
    if (collecting) {
        PyGC_Enable();
    }
    PyMem_Free(taking.known);
    PyMem_Free(taking.owners);
    PyMem_Free(taking.late);
    if (taking.failed) {
        snapshot_free(taking.made);
        return NULL;
    }
    return taking.made;
}

#endif
