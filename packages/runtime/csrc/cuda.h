/* GPU kernels, launched through the driver: libcuda is opened when the first kernel is loaded, so no CUDA toolkit is needed. */
#ifndef FLAMBEAU_CUDA_H
#define FLAMBEAU_CUDA_H

#include "torch_shim.h"

typedef struct {
    void *function;
    unsigned int grid[3], block[3], shared;
    void **arguments, **extra;
} KernelNodeParams; /* CUDA_KERNEL_NODE_PARAMS */

typedef struct {
    size_t x, y, z, lod;
    unsigned int type;
    const void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
} CopyEnd;

typedef struct {
    CopyEnd source, destination;
    size_t width, height, depth;
} CopyNodeParams; /* CUDA_MEMCPY3D */

typedef struct {
    uint64_t destination;
    size_t pitch;
    unsigned int value, element_size;
    size_t width, height;
} FillNodeParams; /* CUDA_MEMSET_NODE_PARAMS */

/* What is called of libcuda, and torch's current stream. */
typedef struct {
    int (*init)(unsigned int);
    int (*context_current)(void **);
    int (*context_push)(void *);
    int (*context_pop)(void **);
    int (*device_get)(int *, int);
    int (*primary_retain)(void **, int);
    int (*module_load)(void **, const void *);
    int (*module_function)(void **, void *, const char *);
    int (*function_attribute)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*error_string)(int, const char **);
    int (*stream_create)(void **, unsigned int, int);
    int (*stream_is_capturing)(void *, int *);
    int (*capture_info)(void *, int *, uint64_t *, void **, void *const **, size_t *);
    int (*copy_async)(uint64_t, uint64_t, size_t, void *);
    int (*copy_node_params)(void *, CopyNodeParams *);
    int (*set_copy_node)(void *, void *, const CopyNodeParams *, void *);
    int (*fill_async)(uint64_t, unsigned int, size_t, void *);
    int (*fill_node_params)(void *, FillNodeParams *);
    int (*set_fill_node)(void *, void *, const FillNodeParams *, void *);
    int (*set_kernel_node)(void *, void *, const KernelNodeParams *);
    int (*graph_launch)(void *, void *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*graph_instantiate)(void **, void *, unsigned long long);
    int (*graph_destroy)(void *);
    int (*exec_destroy)(void *);
    int32_t (*current_stream)(int32_t, void **); /* torch's */
    int ready;
} CudaDriver;

extern CudaDriver cuda_driver;

/* A loaded kernel.  `function[0]` may assume pointers that are multiples of 16 bytes; `function[1]` may not, and is made by
 * calling `unaligned()` when a launch first needs it. */
typedef struct {
    PyObject_HEAD
    void *function[2];
    void *context;
    PyObject *unaligned; /* () -> (image, entry, shared) */
    int32_t device;
    unsigned int warps;
    unsigned int shared[2];
} GpuKernel;

extern PyTypeObject GpuKernelType;

/* Open libcuda; under the GIL.  0, or -1 with an exception set. */
int cuda_open(const char *libtorch_cuda);

/* Make `function[1]` of a kernel; under the GIL.  0, or -1 with an exception set. */
int cuda_load_unaligned(GpuKernel *kernel);

/* Set an exception that names the error; -1. */
int cuda_failed(int status, const char *what);

/* The present stream of the calling thread on a device, as torch has it. */
int cuda_stream(int32_t device, void **stream);

/* Whether a stream is being captured into a graph, or cannot be asked because another one is. */
int cuda_is_capturing(void *stream);

/* The node that was captured last on a stream; NULL where the stream does not end in exactly one. */
void *cuda_last_node(void *stream);

/* The variant of a kernel for these pointers: 0 where all are multiples of 16 bytes, else 1. */
int cuda_variant(void *const *pointers, int64_t n_pointers);

enum { MAX_ARGUMENTS = 600, HIDDEN_ARGUMENTS = 4 };

/* The argument array of a launch: the addresses of pointers, ints, and of the scratch pointers that Triton appends and that
 * our kernels do not ask for (the driver reads as many as there are). */
void cuda_arguments(void *const *pointers, int64_t n_pointers, const int64_t *ints, int64_t n_ints, void **arguments);

/* Launch on `stream`; pointers first, then ints.  0, or -1 with an exception set; takes and needs no GIL unless the unaligned
 * variant has to be built, for which `with_gil(argument)` is called first. */
int cuda_launch(GpuKernel *kernel, void *const *pointers, int64_t n_pointers, const int64_t *ints, int64_t n_ints,
                const int64_t grid[3], void *stream, void (*with_gil)(void *), void *argument);

#endif
