/* flambeau_runtime._core: the executor and what it needs of the dynamic linker. */
#include "cpu_draws.h"
#include "large_memory.h"
#include "recording.h"

#include <dlfcn.h>

extern PyTypeObject LauncherType;

static PyObject *init(PyObject *module, PyObject *args)
{
    const char *libtorch, *libc10, *libpython;
    PyObject *sample, *tensor_type, *is_inference, *inference_mode;
    unsigned long long cdata, storage, below_keys;
    if (!PyArg_ParseTuple(args, "sssOKKKO!OO", &libtorch, &libc10, &libpython, &sample, &cdata, &storage, &below_keys, &PyType_Type, &tensor_type,
                          &is_inference, &inference_mode))
        return NULL;
    if (torch_api_init(libtorch, libc10, libpython, sample, (size_t)cdata, (size_t)storage, below_keys, (PyTypeObject *)tensor_type)) return NULL;
    Py_INCREF(tensor_type);
    torch_api.is_inference = Py_NewRef(is_inference);
    torch_api.inference_mode = Py_NewRef(inference_mode);
    Py_RETURN_NONE;
}

static PyObject *open_library(PyObject *module, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
    void *library;
    Py_BEGIN_ALLOW_THREADS
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    Py_END_ALLOW_THREADS
    if (library == NULL) return PyErr_Format(PyExc_OSError, "%s", dlerror());
    return PyLong_FromVoidPtr(library);
}

static PyObject *find_symbol(PyObject *module, PyObject *args)
{
    PyObject *library;
    const char *name;
    if (!PyArg_ParseTuple(args, "O!s", &PyLong_Type, &library, &name)) return NULL;
    return PyLong_FromVoidPtr(dlsym(PyLong_AsVoidPtr(library), name));
}

static PyObject *open_cuda(PyObject *module, PyObject *path)
{
    const char *library = PyUnicode_AsUTF8(path);
    if (library == NULL || cuda_open(library)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *read_symbols(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    const Executor *ex = nargs > 0 && PyObject_TypeCheck(args[0], &ExecutorType) ? (Executor *)args[0] : NULL;
    if (ex == NULL || nargs - 1 != ex->n_inputs) {
        PyErr_SetString(PyExc_TypeError, "read_symbols takes an executor and its arguments");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, ex->n_symbols / 3 * sizeof(int64_t));
    if (made != NULL && executor_read_symbols(ex, args + 1, (int64_t *)PyBytes_AS_STRING(made))) Py_CLEAR(made);
    if (made != NULL) _PyBytes_Resize(&made, ex->n_sizes * sizeof(int64_t));
    return made;
}

/* Whether operators can be called through libtorch's dispatcher, and whether a failure is silent there. */
static PyObject *dispatcher(PyObject *module, PyObject *unused)
{
    return Py_BuildValue("(OO)", torch_api.dispatches ? Py_True : Py_False, torch_api.exception_what ? Py_True : Py_False);
}

static PyObject *use_count(PyObject *module, PyObject *tensor)
{
    if (!PyObject_TypeCheck(tensor, torch_api.tensor_type) || !torch_api.use_count) Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(storage_use_count(handle_of(tensor)));
}

static PyObject *is_capturing(PyObject *module, PyObject *stream)
{
    void *handle = PyLong_AsVoidPtr(stream);
    if (handle == NULL && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(cuda_is_capturing(handle));
}

static PyObject *captured_copy(PyObject *module, PyObject *args)
{
    unsigned long long destination, source, bytes, stream;
    if (!PyArg_ParseTuple(args, "KKKK", &destination, &source, &bytes, &stream)) return NULL;
    const int status = cuda_driver.copy_async(destination, source, bytes, (void *)(uintptr_t)stream);
    if (status) return cuda_failed(status, "recording a copy"), NULL;
    void *node = cuda_last_node((void *)(uintptr_t)stream);
    if (node == NULL) PyErr_SetString(PyExc_RuntimeError, "a copy could not be found in the captured graph");
    return node == NULL ? NULL : PyLong_FromVoidPtr(node);
}

static PyObject *captured_word(PyObject *module, PyObject *args)
{
    unsigned long long destination, stream;
    void *nodes[2];
    if (!PyArg_ParseTuple(args, "KK", &destination, &stream)) return NULL;
    for (int half = 0; half < 2; half++) {
        const int status = cuda_driver.fill_async(destination + 4 * half, 0, 1, (void *)(uintptr_t)stream);
        if (status) return cuda_failed(status, "recording a fill"), NULL;
        nodes[half] = cuda_last_node((void *)(uintptr_t)stream);
        if (nodes[half] == NULL) return PyErr_Format(PyExc_RuntimeError, "a fill could not be found in the captured graph");
    }
    return Py_BuildValue("(NN)", PyLong_FromVoidPtr(nodes[0]), PyLong_FromVoidPtr(nodes[1]));
}

static PyObject *release_memory(PyObject *module, PyObject *unused)
{
    large_memory_release();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"init", init, METH_VARARGS, "init(libtorch, libc10, libtorch_python, sample, cdata, storage, below_keys, Tensor, is_inference, inference_mode): find and test torch's C interface."},
    {"open_library", open_library, METH_VARARGS, "open_library(path) -> handle; a library once opened stays."},
    {"find_symbol", find_symbol, METH_VARARGS, "find_symbol(handle, name) -> address, 0 if there is none."},
    {"open_cuda", open_cuda, METH_O, "open_cuda(libtorch_cuda): open the driver; RuntimeError if it is not there."},
    {"read_symbols", (PyCFunction)(void (*)(void))read_symbols, METH_FASTCALL,
     "read_symbols(executor, *args) -> bytes: the symbolic sizes of a call, as int64."},
    {"dispatcher", dispatcher, METH_NOARGS,
     "dispatcher() -> (usable, silent): whether operators can be called without Python objects, and whether torch prints nothing "
     "where such a call fails."},
    {"use_count", use_count, METH_O, "use_count(tensor) -> how many tensors and storages share its memory; None if unknown."},
    {"release_memory", release_memory, METH_NOARGS, "release_memory(): let go of memory of large results that is kept for further calls."},
    {"draw_coins", draw_coins, METH_VARARGS,
     "draw_coins(generator, out, count, threshold) -> whether its state is one of mt19937: bools, true with probability threshold / 2**53, at an "
     "address; the generator is advanced."},
    {"is_capturing", is_capturing, METH_O, "is_capturing(stream) -> whether a stream is being captured into a CUDA graph."},
    {"new_stream", new_stream, METH_NOARGS, "new_stream() -> handle of a stream in the thread's present context, never destroyed."},
    {"begin_capture", begin_capture, METH_O, "begin_capture(stream): take down what this thread launches there."},
    {"end_capture", end_capture, METH_O, "end_capture(stream) -> CapturedGraph"},
    {"captured_copy", captured_copy, METH_VARARGS,
     "captured_copy(destination, source, bytes, stream) -> node: a copy on a stream that is being captured."},
    {"captured_word", captured_word, METH_VARARGS,
     "captured_word(destination, stream) -> nodes: fills of the halves of an int64, on a stream that is being captured."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "flambeau_runtime._core", "The executor of Programs, in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void)
{
    if (PyType_Ready(&ExecutorType) < 0 || PyType_Ready(&GpuKernelType) < 0 || PyType_Ready(&RecordingType) < 0 ||
        PyType_Ready(&LauncherType) < 0 || PyType_Ready(&CapturedGraphType) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddObjectRef(module, "Executor", (PyObject *)&ExecutorType) < 0 ||
        PyModule_AddObjectRef(module, "GpuKernel", (PyObject *)&GpuKernelType) < 0 ||
        PyModule_AddObjectRef(module, "Recording", (PyObject *)&RecordingType) < 0 ||
        PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE_HASH", SOURCE_HASH) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
