/* flambeau_runtime._core: the executor and what it needs of the dynamic linker. */
#include "cuda.h"

#include <dlfcn.h>

extern PyTypeObject ExecutorType;

static PyObject *init(PyObject *module, PyObject *args)
{
    const char *libtorch, *libc10, *libpython;
    PyObject *sample, *tensor_type, *is_inference, *inference_mode;
    unsigned long long cdata, below_keys;
    if (!PyArg_ParseTuple(args, "sssOKKO!OO", &libtorch, &libc10, &libpython, &sample, &cdata, &below_keys, &PyType_Type, &tensor_type,
                          &is_inference, &inference_mode))
        return NULL;
    if (torch_api_init(libtorch, libc10, libpython, sample, (size_t)cdata, below_keys, (PyTypeObject *)tensor_type)) return NULL;
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

static PyMethodDef methods[] = {
    {"init", init, METH_VARARGS, "init(libtorch, libc10, libtorch_python, sample, cdata, below_keys, Tensor, is_inference, inference_mode): find and test torch's C interface."},
    {"open_library", open_library, METH_VARARGS, "open_library(path) -> handle; a library once opened stays."},
    {"find_symbol", find_symbol, METH_VARARGS, "find_symbol(handle, name) -> address, 0 if there is none."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "flambeau_runtime._core", "The executor of Programs, in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void)
{
    if (PyType_Ready(&ExecutorType) < 0 || PyType_Ready(&GpuKernelType) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddObjectRef(module, "Executor", (PyObject *)&ExecutorType) < 0 ||
        PyModule_AddObjectRef(module, "GpuKernel", (PyObject *)&GpuKernelType) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE_HASH", SOURCE_HASH) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
