/* Torch without headers: the functions of libtorch that the executor calls, found with dlsym.
 *
 * `aoti_torch_*` is the C interface that libtorch exports.  A tensor handle there is an `at::Tensor *`, that is, the address of
 * a word holding a TensorImpl pointer; the word inside a Python tensor is such an address too, so inputs are read in place.
 */
#ifndef FLAMBEAU_TORCH_SHIM_H
#define FLAMBEAU_TORCH_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef void *Handle; /* at::Tensor * */

typedef struct {
    int32_t (*get_data_ptr)(Handle, void **);
    int32_t (*get_sizes)(Handle, int64_t **);
    int32_t (*get_dim)(Handle, int64_t *);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
    int32_t (*reinterpret)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
    int32_t (*delete_tensor)(Handle);
    int32_t (*get_storage_size)(Handle, int64_t *); /* in bytes; may be NULL */
    const char *(*exception_what)(void); /* may be NULL: failures are then printed on standard error */

    /* C++ symbols, by their mangled names.  The guard takes its key set in a register: it is one 64-bit word. */
    void (*bump_version)(Handle);
    void (*exclude_enter)(void *guard, uint64_t keys);
    void (*exclude_exit)(void *guard);
    void (*buffer_warnings)(void *buffer);  /* may be NULL, like the next: PyWarningHandler's constructor */
    void (*destroy_warnings)(void *buffer); /* and its destructor, see warnings.h */
    /* All five may be NULL, see profile_ranges.h: open and close a range; the callbacks of a thread; the state of a profiler
     * of all threads, NULL if there is none; whether there are callbacks for all threads, which takes a lock: only called
     * where the state cannot be had. */
    int32_t (*range_start)(const char *name, void *keywords, const void *inputs, uint64_t n_inputs, void **range);
    int32_t (*range_end)(void *range);
    const void *(*thread_callbacks)(void);
    void *(*profiler_state)(bool global);
    bool (*has_global_callbacks)(void);
    PyObject *(*wrap)(Handle); /* THPVariable_Wrap: may move from its argument, never frees it */

    size_t slot;          /* where the TensorImpl word stands inside a Python tensor */
    size_t storage;       /* where a TensorImpl holds its StorageImpl pointer */
    size_t use_count;     /* where a StorageImpl holds its reference count, 32 bits; 0: not found */
    uint64_t below_keys;  /* dispatch keys to exclude so that nothing is recorded or cast: autograd, views, autocast */
    PyTypeObject *tensor_type;
    PyObject *is_inference;   /* torch.Tensor.is_inference */
    PyObject *inference_mode; /* torch.is_inference_mode_enabled */
    bool dispatches; /* operators can be called through its dispatcher, see dispatch.h */
    bool ready;
} TorchApi;

extern TorchApi torch_api;

/* Find everything and test it on `sample`, a tensor; `cdata` is its `_cdata`, `storage` its storage's.  0, or -1 with an
 * exception set. */
int torch_api_init(const char *libtorch, const char *libc10, const char *libpython, PyObject *sample, size_t cdata,
                   size_t storage, uint64_t below_keys, PyTypeObject *tensor_type);

/* How many tensors and storage objects share the tensor's memory; torch_api.use_count must have been found. */
uint32_t storage_use_count(Handle tensor);

static inline Handle handle_of(PyObject *tensor) { return (char *)tensor + torch_api.slot; }

#endif
