#include "profile_ranges.h"

/* The public at::RecordFunctionTLS starts with a vector of the thread's callbacks. */
typedef struct {
    const void *first, *end;
} ThreadCallbacks;

static _Thread_local const ThreadCallbacks *thread_callbacks; /* a thread's never move */

bool profile_active(void)
{
    if (torch_api.thread_callbacks == NULL) return false;
    if (thread_callbacks == NULL) thread_callbacks = torch_api.thread_callbacks();
    if (thread_callbacks->first != thread_callbacks->end) return true;
    return torch_api.profiler_state != NULL ? torch_api.profiler_state(true) != NULL : torch_api.has_global_callbacks();
}

void *profile_begin(const char *name)
{
    void *range = NULL;
    return torch_api.range_start(name, NULL, NULL, 0, &range) ? NULL : range;
}

void profile_end(void *range)
{
    if (range != NULL) torch_api.range_end(range);
}

const char *profile_name_of(const Executor *ex, const int64_t *pc)
{
    const int64_t offset = pc - ex->code;
    Py_ssize_t low = 0, high = ex->n_names;
    while (low < high) {
        const Py_ssize_t middle = (low + high) / 2;
        if (ex->names[middle].offset < offset) low = middle + 1;
        else high = middle;
    }
    return low < ex->n_names && ex->names[low].offset == offset ? ex->names[low].text : NULL;
}

int profile_names_init(Executor *ex, PyObject *title, PyObject *names)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(names);
    ex->names_kept = PyTuple_Pack(2, title, names);
    ex->names = PyMem_Calloc(count + 1, sizeof *ex->names);
    if (ex->names_kept == NULL || ex->names == NULL) return PyErr_NoMemory(), -1;
    if ((ex->title = PyUnicode_AsUTF8(title)) == NULL) return -1;
    for (; ex->n_names < count; ex->n_names++) {
        long long offset;
        PyObject *text;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(names, ex->n_names), "LU", &offset, &text)) return -1;
        StepName *name = &ex->names[ex->n_names];
        name->offset = offset;
        if ((name->text = PyUnicode_AsUTF8(text)) == NULL) return -1;
    }
    return 0;
}

void profile_names_clear(Executor *ex)
{
    Py_CLEAR(ex->names_kept);
    PyMem_Free(ex->names);
}
