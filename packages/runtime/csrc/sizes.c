/* Symbolic sizes: read from the arguments of a call, and computed from one another into its table of values. */
#include "executor.h"

#include <string.h>

enum { POSTFIX_CONST, POSTFIX_LOAD, POSTFIX_ADD, POSTFIX_SUB, POSTFIX_MUL, POSTFIX_DIV, POSTFIX_MOD, POSTFIX_MIN, POSTFIX_MAX, POSTFIX_NEG };
enum { EXPRESSION_STACK = 64 };

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

/* Evaluate the size expressions, in order, each result into values[0..]: the postfix text is (length, op, op, ...) groups. */
static int run_postfix(const Executor *ex, int64_t *values)
{
    int64_t stack[EXPRESSION_STACK];
    Py_ssize_t at = 0;
    while (at < ex->n_postfix) {
        const int64_t target = ex->postfix[at], end = at + 2 + ex->postfix[at + 1];
        int top = 0;
        for (at += 2; at < end;) {
            const int64_t op = ex->postfix[at++];
            if (op == POSTFIX_CONST) { stack[top++] = ex->postfix[at++]; continue; }
            if (op == POSTFIX_LOAD) { stack[top++] = values[ex->postfix[at++]]; continue; }
            if (op == POSTFIX_NEG) { stack[top - 1] = -stack[top - 1]; continue; }
            const int64_t b = stack[--top], a = stack[top - 1];
            int64_t r;
            switch (op) {
                case POSTFIX_ADD: r = a + b; break;
                case POSTFIX_SUB: r = a - b; break;
                case POSTFIX_MUL: r = a * b; break;
                case POSTFIX_MIN: r = a < b ? a : b; break;
                case POSTFIX_MAX: r = a > b ? a : b; break;
                default:
                    if (b == 0) {
                        PyErr_Format(PyExc_ZeroDivisionError, "a size expression of %s divides by zero", ex->name);
                        return -1;
                    }
                    r = op == POSTFIX_DIV ? floor_div(a, b) : a - b * floor_div(a, b);
            }
            stack[top - 1] = r;
        }
        values[target] = stack[0];
    }
    return 0;
}

int executor_expected_tensor(const Executor *ex, Py_ssize_t position, PyObject *arg)
{
    PyErr_Format(PyExc_TypeError, "%s: argument %zd must be a tensor, not %s", ex->name, position, Py_TYPE(arg)->tp_name);
    return -1;
}

int executor_read_symbols(const Executor *ex, PyObject *const *args, int64_t *values)
{
    for (Py_ssize_t i = 0; i < ex->n_symbols; i += 3) {
        const int64_t dim = ex->symbols[i + 1];
        PyObject *arg = args[ex->symbols[i]];
        int64_t *into = &values[ex->symbols[i + 2]];
        if (dim == -2) { /* a float goes by its bits */
            const double number = PyFloat_AsDouble(arg);
            if (number == -1.0 && PyErr_Occurred()) return -1;
            memcpy(into, &number, sizeof number);
            continue;
        }
        if (dim <= -3) { /* an element of a tensor of the CPU */
            void *data;
            if (!PyObject_TypeCheck(arg, torch_api.tensor_type)) return executor_expected_tensor(ex, ex->symbols[i], arg);
            if (torch_api.get_data_ptr(handle_of(arg), &data) || data == NULL) {
                PyErr_Format(PyExc_ValueError, "argument %lld of %s has no memory", (long long)ex->symbols[i], ex->name);
                return -1;
            }
            *into = ((const int64_t *)data)[-3 - dim];
            continue;
        }
        if (dim == -1) {
            *into = PyLong_AsLongLong(arg);
            if (*into == -1 && PyErr_Occurred()) return -1;
            continue;
        }
        int64_t *sizes, ndim;
        if (!PyObject_TypeCheck(arg, torch_api.tensor_type)) return executor_expected_tensor(ex, ex->symbols[i], arg);
        if (torch_api.get_dim(handle_of(arg), &ndim) || dim >= ndim || torch_api.get_sizes(handle_of(arg), &sizes)) {
            PyErr_Format(PyExc_ValueError, "argument %lld of %s has no dimension %lld", (long long)ex->symbols[i], ex->name, (long long)dim);
            return -1;
        }
        *into = sizes[dim];
    }
    return 0;
}

int executor_fill_values(const Executor *ex, PyObject *const *args, int64_t *values)
{
    memcpy(values, ex->values, ex->n_values * sizeof *values);
    if (executor_read_symbols(ex, args, values)) return -1;
    if (run_postfix(ex, values)) return -1;
    for (Py_ssize_t i = 0; i < ex->reserved[0]; i += 2) values[ex->copies[i]] = values[ex->copies[i + 1]];
    return 0;
}
