/* Calls of operators through Python: their arguments are built from trees, their results kept in slots. */
#include "operator_calls.h"

#include "slots.h"

/* Name the operator on an exception that an operator raised. */
static void add_note(PyObject *message)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *done = value ? PyObject_CallMethod(value, "add_note", "O", message) : NULL;
    if (done == NULL) PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
}

/* An argument tree is None-safe: ("k", constant) | ("t", slot) | ("i", value index) | ("f", value index of a float's bits) | ("l", [tree...]) | ("u", (tree...)). */
static PyObject *build_argument(Call *call, PyObject *tree)
{
    PyObject *payload = PyTuple_GET_ITEM(tree, 1);
    switch (PyUnicode_READ_CHAR(PyTuple_GET_ITEM(tree, 0), 0)) {
        case 'k': return Py_NewRef(payload);
        case 't': return object_of(&call->slots[PyLong_AsSsize_t(payload)]);
        case 'i': return PyLong_FromLongLong(call->values[PyLong_AsSsize_t(payload)]);
        case 'f': {
            double number;
            memcpy(&number, &call->values[PyLong_AsSsize_t(payload)], sizeof number);
            return PyFloat_FromDouble(number);
        }
        default: break;
    }
    const int is_list = PyUnicode_READ_CHAR(PyTuple_GET_ITEM(tree, 0), 0) == 'l';
    const Py_ssize_t n = PyTuple_GET_SIZE(payload);
    PyObject *made = is_list ? PyList_New(n) : PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *item = build_argument(call, PyTuple_GET_ITEM(payload, i));
        if (item == NULL) { Py_CLEAR(made); break; }
        if (is_list) PyList_SET_ITEM(made, i, item);
        else PyTuple_SET_ITEM(made, i, item);
    }
    return made;
}

static int keep_result(Call *call, int64_t slot, PyObject *result)
{
    if (slot < 0) return 0;
    if (!PyObject_TypeCheck(result, torch_api.tensor_type)) {
        PyErr_Format(PyExc_TypeError, "expected a tensor as result, got %s", Py_TYPE(result)->tp_name);
        return -1;
    }
    drop(&call->slots[slot]);
    call->slots[slot] = (Slot){.handle = handle_of(result), .object = Py_NewRef(result), .hold = HOLD_OBJECT};
    return 0;
}

int operator_call(Call *call, const int64_t *pc)
{
    PyObject *objects = call->ex->objects;
    PyObject *trees = PyTuple_GET_ITEM(objects, pc[1]);
    PyObject *keywords = pc[2] < 0 ? NULL : PyTuple_GET_ITEM(objects, pc[2]);
    const int64_t n_outputs = pc[4];
    const Py_ssize_t n = PyTuple_GET_SIZE(trees);
    PyObject *arguments[32];
    Py_ssize_t made = 0;
    int failed = n > 32;
    if (failed) PyErr_SetString(PyExc_ValueError, "an operator with more than 32 arguments");
    for (; !failed && made < n; made++) {
        arguments[made] = build_argument(call, PyTuple_GET_ITEM(trees, made));
        if (arguments[made] == NULL) { failed = 1; break; }
    }
    PyObject *result = NULL;
    if (!failed) {
        const Py_ssize_t n_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;
        result = PyObject_Vectorcall(PyTuple_GET_ITEM(objects, pc[0]), arguments, n - n_keywords, keywords);
        failed = result == NULL;
    }
    for (Py_ssize_t i = 0; i < made; i++) Py_DECREF(arguments[i]);
    if (!failed && n_outputs == 1 && !PyTuple_Check(result) && !PyList_Check(result)) {
        failed = keep_result(call, pc[5], result);
    } else if (!failed && n_outputs > 0) {
        PyObject *items = PySequence_Fast(result, "expected a sequence of results");
        failed = items == NULL;
        if (!failed && PySequence_Fast_GET_SIZE(items) != n_outputs) {
            PyErr_Format(PyExc_ValueError, "expected %lld results, got %zd", (long long)n_outputs, PySequence_Fast_GET_SIZE(items));
            failed = 1;
        }
        for (int64_t i = 0; !failed && i < n_outputs; i++)
            failed = keep_result(call, pc[5 + i], PySequence_Fast_GET_ITEM(items, i));
        Py_XDECREF(items);
    }
    Py_XDECREF(result);
    if (failed) add_note(PyTuple_GET_ITEM(objects, pc[3]));
    return failed ? -1 : 0;
}
