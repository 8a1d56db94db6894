/* Tracebacks as the program would have them: without the frames that stand between its own.
 *
 * An exception that leaves a compiled callable has passed through entries and wrappers of ours.  Their nodes are taken out of the chain where the
 * callable hands the error on, so that a traceback, and whatever walks one, shows what eager PyTorch would show.
 * An error of ours (its type is, or the frame that raised it) keeps all of them.
 */
#include "core.h"
#include <frameobject.h>
#include <string.h>

#define ENTRY_FILE "<flambeau entry of "

/* Links of a chain of causes and contexts that are looked at: a chain may be a cycle. */
#define MAX_LINKS 64

typedef enum { OF_PROGRAM, OF_ENTRY, OF_PACKAGE } FrameKind;

/* "flambeau" or "flambeau_capture", and what is in them; not "flambeaux". */
static int
is_own_module(PyObject *name)
{
    static const char *const packages[] = {"flambeau",        "flambeau_capture",  "flambeau_autograd",
                                           "flambeau_prims", "flambeau_inductor", "flambeau_runtime"};
    if (name == NULL || !PyUnicode_Check(name)) {
        return 0;
    }
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        PyErr_Clear();
        return 0;
    }
    size_t length = strcspn(text, ".");
    for (size_t i = 0; i < COUNT_OF(packages); i++) {
        if (strlen(packages[i]) == length && memcmp(packages[i], text, length) == 0) {
            return 1;
        }
    }
    return 0;
}

static FrameKind
frame_kind(PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    FrameKind kind = OF_PROGRAM;
    if (file == NULL) {
        PyErr_Clear();
    }
    else if (strncmp(file, ENTRY_FILE, sizeof(ENTRY_FILE) - 1) == 0) {
        kind = OF_ENTRY;
    }
    Py_DECREF(code);
    if (kind == OF_PROGRAM) {
        PyObject *globals = PyFrame_GetGlobals(frame);
        if (is_own_module(PyDict_GetItemString(globals, "__name__"))) {
            kind = OF_PACKAGE;
        }
        Py_DECREF(globals);
    }
    return kind;
}

/* The chain from `head` (borrowed) without our own frames: a new reference, NULL for none.  Nodes are relinked, not copied, as `tb_next` may be set. */
static PyObject *
without_own(PyObject *head)
{
    PyTracebackObject *node, *last = NULL, *first = NULL;
    FrameKind kind = OF_PROGRAM;
    int own = 0;
    for (node = (PyTracebackObject *)head; node != NULL; node = node->tb_next) {
        kind = frame_kind(node->tb_frame);
        own += kind != OF_PROGRAM;
    }
    if (own == 0 || kind == OF_PACKAGE) {
        return Py_XNewRef(head);
    }
    for (node = (PyTracebackObject *)head; node != NULL;) {
        PyTracebackObject *next = node->tb_next;
        if (frame_kind(node->tb_frame) == OF_PROGRAM) {
            if (last == NULL) {
                first = (PyTracebackObject *)Py_NewRef(node);
            }
            last = node;
        }
        else if (last != NULL) {
            PyTracebackObject *dropped = last->tb_next;
            last->tb_next = (PyTracebackObject *)Py_XNewRef(next);
            Py_DECREF(dropped); /* `next` is held by what is linked to it now */
        }
        node = next;
    }
    return (PyObject *)first;
}

/* Whether an exception's type is one of ours: it reports a limit or a bug of the compiler. */
static int
is_own_error(PyObject *error)
{
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(error), "__module__");
    int own = is_own_module(name);
    Py_XDECREF(name);
    PyErr_Clear();
    return own;
}

static void
trim_traceback(PyObject *error)
{
    PyObject *head = PyException_GetTraceback(error);
    if (head != NULL) {
        PyObject *kept = without_own(head);
        if (kept != head) {
            PyException_SetTraceback(error, kept == NULL ? Py_None : kept);
        }
        Py_XDECREF(kept);
        Py_DECREF(head);
    }
}

/* `error`, and what it was raised in the handling of. */
static void
trim_chain(PyObject *error)
{
    PyObject *link = Py_NewRef(error);
    for (int count = 0; link != NULL && count < MAX_LINKS && !is_own_error(link); count++) {
        trim_traceback(link);
        PyObject *cause = PyException_GetCause(link), *context = PyException_GetContext(link);
        if (cause != NULL && cause != context && !is_own_error(cause)) {
            trim_traceback(cause);
        }
        Py_XDECREF(cause);
        Py_SETREF(link, context);
    }
    Py_XDECREF(link);
}

/* The chain without a first frame that is one of ours and runs `code` (steals it). */
static PyObject *
without_first(PyObject *head, PyObject *code)
{
    PyTracebackObject *node = (PyTracebackObject *)head;
    if (node == NULL || node->tb_next == NULL || frame_kind(node->tb_frame) != OF_PACKAGE) {
        return head;
    }
    PyCodeObject *first = PyFrame_GetCode(node->tb_frame);
    PyObject *kept = (PyObject *)first == code ? Py_NewRef(node->tb_next) : Py_NewRef(head);
    Py_DECREF(first);
    Py_DECREF(head);
    return kept;
}

void
trim_raised(PyObject *code)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (code != NULL) {
        PyErr_Restore(type, value, without_first(traceback, code));
        return;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value == NULL || !PyExceptionInstance_Check(value)) {
        PyErr_Restore(type, value, traceback);
        return;
    }
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    trim_chain(value);
    Py_XDECREF(traceback);
    PyErr_Restore(type, value, PyException_GetTraceback(value));
}
