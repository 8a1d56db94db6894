/* A CUDA graph that was captured from a stream, with its executable.  torch.cuda.CUDAGraph is not used where no random numbers
 * are drawn: while it captures, other threads cannot draw any. */
#include "recording.h"

#include <structmember.h>

enum { CAPTURE_THREAD_LOCAL = 1, STREAM_NON_BLOCKING = 1 };

typedef struct {
    PyObject_HEAD
    void *graph;
    unsigned long long exec;
} CapturedGraph;

PyObject *new_stream(PyObject *module, PyObject *nothing)
{
    void *stream = NULL;
    const int status = cuda_driver.stream_create(&stream, STREAM_NON_BLOCKING, 0);
    if (status) return cuda_failed(status, "making a stream"), NULL;
    return PyLong_FromVoidPtr(stream);
}

PyObject *begin_capture(PyObject *module, PyObject *stream)
{
    void *handle = PyLong_AsVoidPtr(stream);
    if (handle == NULL && PyErr_Occurred()) return NULL;
    const int status = cuda_driver.begin_capture(handle, CAPTURE_THREAD_LOCAL);
    if (status) return cuda_failed(status, "beginning a capture"), NULL;
    Py_RETURN_NONE;
}

PyObject *end_capture(PyObject *module, PyObject *stream)
{
    void *handle = PyLong_AsVoidPtr(stream), *graph = NULL, *exec = NULL;
    if (handle == NULL && PyErr_Occurred()) return NULL;
    int status = cuda_driver.end_capture(handle, &graph);
    if (!status) status = cuda_driver.graph_instantiate(&exec, graph, 0);
    CapturedGraph *made = status ? NULL : (CapturedGraph *)CapturedGraphType.tp_alloc(&CapturedGraphType, 0);
    if (made == NULL) {
        if (exec != NULL) cuda_driver.exec_destroy(exec);
        if (graph != NULL) cuda_driver.graph_destroy(graph);
        return status ? (cuda_failed(status, "capturing a graph"), NULL) : NULL;
    }
    made->graph = graph;
    made->exec = (unsigned long long)(uintptr_t)exec;
    return (PyObject *)made;
}

static void captured_graph_dealloc(PyObject *object)
{
    CapturedGraph *self = (CapturedGraph *)object;
    cuda_driver.exec_destroy((void *)(uintptr_t)self->exec);
    cuda_driver.graph_destroy(self->graph);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef captured_graph_members[] = {
    {"exec", T_ULONGLONG, offsetof(CapturedGraph, exec), READONLY, "Address of the executable graph."},
    {NULL},
};

PyTypeObject CapturedGraphType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_runtime._core.CapturedGraph",
    .tp_doc = "A CUDA graph and its executable, from end_capture.",
    .tp_basicsize = sizeof(CapturedGraph),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = captured_graph_dealloc,
    .tp_members = captured_graph_members,
};
