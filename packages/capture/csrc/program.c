/* GuardProgram: the flat program that decides whether an entry serves a call, and loads the entry's inputs.
 *
 * It is made by guards/program.py from guards over origins.  A load puts the object an origin holds into a register; a
 * check compares a register with a payload.  Loads verify what they dereference (a dict is a dict, an index is in range), so no order of operations
 * can touch freed or mistyped memory; they give borrowed references, which stay valid because nothing between two
 * operations runs Python code.  A program with operations that may do so (GETATTR, CALL) holds every register instead.
 */
#include "snapshot.h"

void
program_set_absent(PyObject *value)
{
    Py_XSETREF(absent, Py_NewRef(value));
}

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
        case OP_RELATION: ok = relation_holds(op->relation, symbols); goto checked;
        case OP_DISTINCT_MEMORY: ok = check_distinct_memory(op, regs); goto checked;
        case OP_ARRAY: ok = check_array(source, op); goto checked;
        case OP_WORDS: ok = words_stand(op); goto checked;
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

/* As run_ops.  A program that holds for the first time, or whose snapshot is outdated, has one taken. */
static Py_ssize_t
run_in(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs, PyObject **regs, int64_t *symbols)
{
    regs[0] = NULL; /* register 0 is the source of operations that have none */
    Py_ssize_t failed = run_ops(program, function, arguments, regs, symbols);
    if (failed == GUARDS_HOLD && inputs != NULL) {
        for (Py_ssize_t i = 0; i < program->input_count; i++) {
            inputs[i] = Py_NewRef(regs[program->inputs[i]]);
        }
    }
    if (failed == GUARDS_HOLD && program->outdated != NULL && program->running == 0 && program->taken < 32 + program->hits / 8) {
        program->taken++;
        snapshot_free(program->snapshot);
        program->snapshot = snapshot_take(program, regs);
    }
    if (program->holds) {
        const Op *end = program->ops + (failed == GUARDS_HOLD ? program->count : failed);
        for (const Op *op = program->ops; op < end; op++) {
            if (op->code < OP_DICT_GROUP) {
                Py_DECREF(regs[op->dst]);
            }
        }
    }
    return failed;
}

#define SMALL 48
#define MEDIUM 1024

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

static Py_ssize_t
run_sized(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    if (program->symbol_count > SMALL || program->register_count > MEDIUM) {
        return run_large(program, function, arguments, inputs);
    }
    if (program->register_count > SMALL) {
        return run_medium(program, function, arguments, inputs);
    }
    return run_small(program, function, arguments, inputs);
}

static Py_ssize_t
run_with_snapshot(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    Program *snapshot = program->snapshot;
    if (snapshot != NULL) {
        program->running++;
        Py_ssize_t failed = run_sized(snapshot, function, arguments, inputs);
        program->running--;
        if (failed == GUARDS_HOLD) {
            program->hits++;
            return GUARDS_HOLD;
        }
        if (snapshot->ops[failed].guard != OUTDATED) {
            return snapshot->ops[failed].guard;
        }
        blame(program, snapshot, failed);
    }
    Py_ssize_t failed = run_sized(program, function, arguments, inputs);
    return failed == GUARDS_HOLD ? GUARDS_HOLD : program->ops[failed].guard;
}

Py_ssize_t
program_run(Program *program, PyObject *function, PyObject *const *arguments, PyObject **inputs)
{
    Py_INCREF(program);
    Py_ssize_t failed = run_with_snapshot(program, function, arguments, inputs);
    Py_DECREF(program);
    return failed;
}

void
program_expect_snapshots(Program *program)
{
    if (HAS_SNAPSHOTS && program->count >= SNAPSHOT_MINIMUM) {
        program->outdated = PyMem_Calloc((size_t)program->register_count, 1); /* NULL: it runs as it is */
        if (program->outdated != NULL) {
            expect_changes(program);
        }
    }
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
