/* Conditions on symbolic sizes: postfix programs over int64, made by guards/constants.py from Python text. */
#include "program.h"

enum {
    R_CONSTANT, /* push the next word */
    R_SYMBOL,   /* push symbols[next word] */
    R_ADD, R_SUB, R_MUL, R_FLOORDIV, R_MOD, R_NEG, R_MIN, R_MAX,
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

int
relation_holds(const int64_t *word, const int64_t *symbols)
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

/* Checks that every word is known, every symbol in range, and that the stack neither under- nor overflows. */
int64_t *
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

const char *
relation_code_name(size_t code)
{
    static const char *const relations[] = {"R_CONSTANT", "R_SYMBOL", "R_ADD", "R_SUB", "R_MUL", "R_FLOORDIV", "R_MOD", "R_NEG", "R_MIN", "R_MAX",
                                      "R_EQ", "R_NE", "R_LT", "R_LE", "R_GT", "R_GE", "R_AND", "R_OR", "R_NOT"};
    _Static_assert(COUNT_OF(relations) == R_END, "one name a relation code");
    return code < COUNT_OF(relations) ? relations[code] : NULL;
}
