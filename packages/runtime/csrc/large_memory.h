/* Memory of large tensors of the CPU: pages that are there already, or huge ones. */
#ifndef FLAMBEAU_LARGE_MEMORY_H
#define FLAMBEAU_LARGE_MEMORY_H

#include "torch_shim.h"

enum { LARGE_ELEMENTS = 1 << 20 }; /* fewer elements are allocated as torch does: their pages are at hand */

/* A tensor of the CPU, uninitialised, by `sizes` and the strides behind them; 0, or torch's status. `again`: the Program that
 * needs it has run before. */
int32_t large_memory_new(int64_t ndim, const int64_t *sizes, int32_t dtype, int again, Handle *made);

/* The same on any device; what is small, or of another device, is allocated as torch does. */
static inline int32_t new_tensor(int64_t ndim, const int64_t *sizes, int32_t dtype, int32_t device_type, int32_t device, int again, Handle *made)
{
    int64_t count = device_type == 0 /* CPU */;
    for (int64_t i = 0; i < ndim; i++) count *= sizes[i];
    if (count >= LARGE_ELEMENTS) return large_memory_new(ndim, sizes, dtype, again, made);
    return torch_api.empty_strided(ndim, sizes, sizes + ndim, dtype, device_type, device, made);
}

/* Let go of the memory that is kept for further calls. */
void large_memory_release(void);

#endif
