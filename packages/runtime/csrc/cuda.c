#include "cuda.h"

#include <dlfcn.h>
#include <structmember.h>

enum { SHARED_WITHOUT_ASKING = 48 * 1024, FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED = 8 };

/* 1. The driver */

CudaDriver cuda_driver;
#define driver cuda_driver

static int find_in(void *library, const char *name, void *into)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%s is not exported", name);
        return -1;
    }
    memcpy(into, &symbol, sizeof symbol);
    return 0;
}

int cuda_open(const char *libtorch_cuda)
{
    if (driver.ready) return 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *torch = dlopen(libtorch_cuda, RTLD_LAZY | RTLD_NOLOAD);
    if (cuda == NULL || torch == NULL) {
        PyErr_Format(PyExc_RuntimeError, "GPU kernels need %s, which is not there", cuda ? libtorch_cuda : "libcuda.so.1");
        return -1;
    }
    const struct {
        const char *name;
        void *into;
    } wanted[] = {
        {"cuInit", &driver.init},
        {"cuCtxGetCurrent", &driver.context_current},
        {"cuCtxPushCurrent_v2", &driver.context_push},
        {"cuCtxPopCurrent_v2", &driver.context_pop},
        {"cuDeviceGet", &driver.device_get},
        {"cuDevicePrimaryCtxRetain", &driver.primary_retain},
        {"cuModuleLoadData", &driver.module_load},
        {"cuModuleGetFunction", &driver.module_function},
        {"cuFuncSetAttribute", &driver.function_attribute},
        {"cuLaunchKernel", &driver.launch},
        {"cuGetErrorString", &driver.error_string},
        {"cuStreamCreateWithPriority", &driver.stream_create},
        {"cuStreamIsCapturing", &driver.stream_is_capturing},
        {"cuStreamGetCaptureInfo_v2", &driver.capture_info},
        {"cuMemcpyDtoDAsync_v2", &driver.copy_async},
        {"cuGraphMemcpyNodeGetParams", &driver.copy_node_params},
        {"cuGraphExecMemcpyNodeSetParams", &driver.set_copy_node},
        {"cuMemsetD32Async", &driver.fill_async},
        {"cuGraphMemsetNodeGetParams", &driver.fill_node_params},
        {"cuGraphExecMemsetNodeSetParams", &driver.set_fill_node},
        {"cuGraphExecKernelNodeSetParams", &driver.set_kernel_node},
        {"cuGraphLaunch", &driver.graph_launch},
        {"cuStreamBeginCapture_v2", &driver.begin_capture},
        {"cuStreamEndCapture", &driver.end_capture},
        {"cuGraphInstantiateWithFlags", &driver.graph_instantiate},
        {"cuGraphDestroy", &driver.graph_destroy},
        {"cuGraphExecDestroy", &driver.exec_destroy},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (find_in(cuda, wanted[i].name, wanted[i].into)) return -1;
    if (find_in(torch, "aoti_torch_get_current_cuda_stream", &driver.current_stream)) return -1;
    driver.ready = 1;
    return 0;
}

int cuda_failed(int status, const char *what)
{
    const char *text = NULL;
    if (driver.error_string) driver.error_string(status, &text);
    PyErr_Format(PyExc_RuntimeError, "%s: %s (CUDA error %d)", what, text ? text : "unknown", status);
    return -1;
}

int cuda_stream(int32_t device, void **stream) { return driver.current_stream(device, stream) ? -1 : 0; }

int cuda_is_capturing(void *stream)
{
    int capturing = 0;
    return driver.stream_is_capturing(stream, &capturing) || capturing;
}

void *cuda_last_node(void *stream)
{
    int capturing = 0;
    uint64_t id;
    void *graph = NULL;
    void *const *nodes = NULL;
    size_t count = 0;
    const int status = driver.capture_info(stream, &capturing, &id, &graph, &nodes, &count);
    return status || !capturing || count != 1 ? NULL : nodes[0];
}

/* 2. Loading */

static int load_function(GpuKernel *kernel, int variant, PyObject *image, const char *entry, unsigned int shared)
{
    void *module = NULL, *function = NULL, *popped;
    int status = driver.context_push(kernel->context);
    if (status) return cuda_failed(status, "entering the device's context");
    status = driver.module_load(&module, PyBytes_AS_STRING(image));
    if (!status) status = driver.module_function(&function, module, entry);
    if (!status && shared > SHARED_WITHOUT_ASKING)
        status = driver.function_attribute(function, FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED, (int)shared);
    driver.context_pop(&popped);
    if (status) return cuda_failed(status, entry);
    kernel->shared[variant] = shared;
    __atomic_store_n(&kernel->function[variant], function, __ATOMIC_RELEASE);
    return 0;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"libtorch_cuda", "device", "image", "entry", "shared", "warps", "unaligned", NULL};
    const char *library, *entry;
    int device;
    unsigned int shared, warps;
    PyObject *image, *unaligned;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "siSsIIO", names, &library, &device, &image, &entry, &shared, &warps, &unaligned))
        return NULL;
    if (cuda_open(library)) return NULL;
    GpuKernel *self = (GpuKernel *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->device = device;
    self->warps = warps;
    self->unaligned = Py_NewRef(unaligned);
    int handle = 0, status = driver.init(0);
    if (!status) status = driver.device_get(&handle, device);
    if (!status) status = driver.primary_retain(&self->context, handle);
    if (status ? cuda_failed(status, "opening the device") : load_function(self, 0, image, entry, shared)) Py_CLEAR(self);
    return (PyObject *)self;
}

/* A module once loaded stays for the process: executors of other threads may be launching it. */
static void kernel_dealloc(PyObject *object)
{
    Py_XDECREF(((GpuKernel *)object)->unaligned);
    Py_TYPE(object)->tp_free(object);
}

int cuda_load_unaligned(GpuKernel *kernel)
{
    PyObject *image;
    const char *entry;
    unsigned int shared;
    PyObject *made = PyObject_CallNoArgs(kernel->unaligned);
    int status = made == NULL || !PyArg_ParseTuple(made, "SsI", &image, &entry, &shared) || load_function(kernel, 1, image, entry, shared);
    Py_XDECREF(made);
    return status ? -1 : 0;
}

/* 3. Launching */

int cuda_variant(void *const *pointers, int64_t n_pointers)
{
    uintptr_t bits = 0;
    for (int64_t i = 0; i < n_pointers; i++) bits |= (uintptr_t)pointers[i];
    return (bits & 15) != 0;
}

void cuda_arguments(void *const *pointers, int64_t n_pointers, const int64_t *ints, int64_t n_ints, void **arguments)
{
    static void *nothing = NULL;
    for (int64_t i = 0; i < n_pointers; i++) *arguments++ = (void *)&pointers[i];
    for (int64_t i = 0; i < n_ints; i++) *arguments++ = (void *)&ints[i];
    for (int i = 0; i < HIDDEN_ARGUMENTS; i++) *arguments++ = &nothing;
}

int cuda_launch(GpuKernel *kernel, void *const *pointers, int64_t n_pointers, const int64_t *ints, int64_t n_ints,
                const int64_t grid[3], void *stream, void (*with_gil)(void *), void *argument)
{
    void *arguments[MAX_ARGUMENTS + HIDDEN_ARGUMENTS];
    void *current = NULL, *popped;
    if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return 0; /* an empty tensor */
    cuda_arguments(pointers, n_pointers, ints, n_ints, arguments);
    const int variant = cuda_variant(pointers, n_pointers);
    if (variant && __atomic_load_n(&kernel->function[1], __ATOMIC_ACQUIRE) == NULL) {
        with_gil(argument);
        if (cuda_load_unaligned(kernel)) return -1;
    }
    driver.context_current(&current);
    const int foreign = current != kernel->context;
    if (foreign) driver.context_push(kernel->context);
    const int status = driver.launch(kernel->function[variant], (unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2],
                                     32 * kernel->warps, 1, 1, kernel->shared[variant], stream, arguments, NULL);
    if (foreign) driver.context_pop(&popped);
    if (!status) return 0;
    with_gil(argument);
    return cuda_failed(status, "launching a kernel");
}

static PyMemberDef kernel_members[] = {
    {"device", T_INT, offsetof(GpuKernel, device), READONLY, "Index of the device it is loaded on."},
    {NULL},
};

PyTypeObject GpuKernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_runtime._core.GpuKernel",
    .tp_doc = "GpuKernel(libtorch_cuda, device, image, entry, shared, warps, unaligned): a cubin loaded on a device.",
    .tp_basicsize = sizeof(GpuKernel),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = kernel_new,
    .tp_dealloc = kernel_dealloc,
    .tp_members = kernel_members,
};
