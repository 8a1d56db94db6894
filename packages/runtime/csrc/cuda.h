/* GPU kernels, launched through the driver: libcuda is opened when the first kernel is loaded, so no CUDA toolkit is needed. */
#ifndef FLAMBEAU_CUDA_H
#define FLAMBEAU_CUDA_H

#include "torch_shim.h"

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

/* The present stream of the calling thread on a device, as torch has it. */
int cuda_stream(int32_t device, void **stream);

/* Launch on `stream`; pointers first, then ints.  0, or -1 with an exception set; takes and needs no GIL unless the unaligned
 * variant has to be built, for which `with_gil(argument)` is called first. */
int cuda_launch(GpuKernel *kernel, void *const *pointers, int64_t n_pointers, const int64_t *ints, int64_t n_ints,
                const int64_t grid[3], void *stream, void (*with_gil)(void *), void *argument);

#endif
