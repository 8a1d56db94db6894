/* GuardProgram as a Python type: it is built from tuples, and verified so that no execution can go wrong.
 *
 * Verified are: codes, registers and indices in range, payloads of the right types, every register written once and before it is read.
 */
#include "program.h"

static const struct {
    const char *name;
    int runs_python;
} operation_table[] = {
#define X(name, runs_python) {#name, runs_python},
    OPERATIONS(X)
#undef X
};

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

static uint16_t *
sources_new(const Program *program, PyObject *payload, int64_t written)
{
    Py_ssize_t count = PyTuple_CheckExact(payload) ? PyTuple_GET_SIZE(payload) : -1;
    if (count < 0 || written < 0 || written > count) {
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
    case OP_ARRAY:
        if (PyType_Check(op->object) && strcmp(((PyTypeObject *)op->object)->tp_name, "numpy.ndarray") == 0) return 0;
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
        if (code >= COUNT_OF(operation_table) || code == OP_WORDS || dst > MAX_REGISTERS || src > MAX_REGISTERS || guard > MAX_REGISTERS) {
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
    program_expect_snapshots(program);
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
    PyMem_Free(self->outdated);
    snapshot_free(self->snapshot);
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
    size_t operations_count = COUNT_OF(operation_table);
    PyObject *table = PyDict_New();
    const char *name;
    for (size_t i = 0; table != NULL; i++) {
        size_t code_number = i < operations_count ? i : i - operations_count;
        name = i < operations_count ? operation_table[i].name : relation_code_name(code_number);
        if (name == NULL) {
            break;
        }
        PyObject *code = PyLong_FromSize_t(code_number);
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
    program_set_absent(value);
    Py_RETURN_NONE;
}

PyMethodDef program_functions[] = {
    {"operations", operations, METH_NOARGS, "{name: code} of the operations of a GuardProgram."},
    {"set_absent", set_absent, METH_O, "Give the object that stands for a missing type attribute (origins.ABSENT)."},
    {NULL, NULL, 0, NULL},
};
