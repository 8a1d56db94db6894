#include "dispatch.h"

#include <dlfcn.h>
#include <string.h>

TorchApi torch_api;

static void *open_loaded(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) PyErr_Format(PyExc_ImportError, "%s is not loaded in this process", path);
    return library;
}

static int find(void *library, const char *name, void *into)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        PyErr_Format(PyExc_ImportError, "this torch does not export %s", name);
        return -1;
    }
    memcpy(into, &symbol, sizeof symbol);
    return 0;
}

/* The word of a Python tensor that holds its TensorImpl pointer: exactly one of the words after the object header. */
static int probe_slot(PyObject *sample, size_t cdata, size_t *slot)
{
    size_t found = 0;
    for (size_t at = sizeof(PyObject); at + sizeof(void *) <= (size_t)Py_TYPE(sample)->tp_basicsize; at += sizeof(void *)) {
        size_t word;
        memcpy(&word, (char *)sample + at, sizeof word);
        if (word != cdata) continue;
        if (found) {
            PyErr_SetString(PyExc_ImportError, "two words of a Python tensor hold its TensorImpl");
            return -1;
        }
        found = at;
    }
    if (!found) {
        PyErr_SetString(PyExc_ImportError, "no word of a Python tensor holds its TensorImpl");
        return -1;
    }
    *slot = found;
    return 0;
}

static char *storage_of(const TorchApi *api, Handle tensor) { return *(char **)(*(char **)tensor + api->storage); }

uint32_t storage_use_count(Handle tensor)
{
    return __atomic_load_n((uint32_t *)(storage_of(&torch_api, tensor) + torch_api.use_count), __ATOMIC_ACQUIRE);
}

/* Where a StorageImpl counts its references: the one 32-bit word near its start that grows by the number of views that are
 * made of the tensor.  It stays 0 where there is none such: outputs are then never kept in place by recordings. */
static void probe_use_count(TorchApi *api, Handle sample, size_t storage)
{
    enum { IMPL_WORDS = 8, COUNT_WORDS = 16, VIEWS = 5 };
    const int64_t size = 1, stride = 1;
    uint32_t before[COUNT_WORDS], after[COUNT_WORDS];
    Handle views[VIEWS] = {NULL};
    size_t at = sizeof(void *);
    while (at < IMPL_WORDS * sizeof(void *) && *(size_t *)(*(char **)sample + at) != storage) at += sizeof(void *);
    if (at == IMPL_WORDS * sizeof(void *)) return;
    api->storage = at;
    memcpy(before, storage_of(api, sample), sizeof before);
    int made = 0;
    while (made < VIEWS && api->reinterpret(sample, 1, &size, &stride, 0, &views[made]) == 0) made++;
    memcpy(after, storage_of(api, sample), sizeof after);
    for (int i = 0; i < made; i++) api->delete_tensor(views[i]);
    int grown = 0;
    for (int i = 0; i < COUNT_WORDS; i++)
        if (after[i] - before[i] == VIEWS && before[i] > 0 && grown++ == 0) api->use_count = i * sizeof(uint32_t);
    if (made != VIEWS || grown != 1) api->use_count = 0;
}

/* What profile_ranges.c needs: all of it, or nothing. */
static void find_ranges(TorchApi *api, void *torch)
{
    void *start = dlsym(torch, "aoti_record_function_start"), *end = dlsym(torch, "aoti_record_function_end");
    void *callbacks = dlsym(torch, "_ZN2at24get_record_function_tls_Ev");
    void *state = dlsym(torch, "_ZN5torch8profiler4impl17ProfilerStateBase3getEb"); /* up to 2.13 */
    void *any = dlsym(torch, "_ZN2at18hasGlobalCallbacksEv");
    if (start == NULL || end == NULL || callbacks == NULL || (state == NULL && any == NULL)) return;
    memcpy(&api->range_start, &start, sizeof start);
    memcpy(&api->range_end, &end, sizeof end);
    memcpy(&api->thread_callbacks, &callbacks, sizeof callbacks);
    memcpy(&api->profiler_state, &state, sizeof state);
    memcpy(&api->has_global_callbacks, &any, sizeof any);
}

/* Make a 2 x 3 tensor, look at it, wrap it: each function is used once on known data before it is trusted. */
static int self_test(const TorchApi *api)
{
    const int64_t sizes[2] = {2, 3}, strides[2] = {3, 1};
    int64_t *seen = NULL, dim = 0;
    void *data = NULL, *again = NULL;
    Handle made = NULL;
    if (api->empty_strided(2, sizes, strides, 6 /* float32 */, 0, 0, &made) != 0 || made == NULL) goto failed;
    if (api->get_dim(made, &dim) != 0 || dim != 2) goto failed;
    if (api->get_sizes(made, &seen) != 0 || seen[0] != 2 || seen[1] != 3) goto failed;
    if (api->get_data_ptr(made, &data) != 0 || data == NULL) goto failed;
    PyObject *wrapped = api->wrap(made);
    api->delete_tensor(made);
    if (wrapped == NULL) return -1;
    int same = Py_TYPE(wrapped) == api->tensor_type &&
               api->get_data_ptr((char *)wrapped + api->slot, &again) == 0 && again == data;
    Py_DECREF(wrapped);
    if (same) return 0;
failed:
    PyErr_SetString(PyExc_ImportError, "the self-test of torch's C interface failed");
    return -1;
}

int torch_api_init(const char *libtorch, const char *libc10, const char *libpython, PyObject *sample, size_t cdata,
                   size_t storage, uint64_t below_keys, PyTypeObject *tensor_type)
{
    TorchApi api = {0};
    void *torch = open_loaded(libtorch), *c10 = torch ? open_loaded(libc10) : NULL, *py = c10 ? open_loaded(libpython) : NULL;
    if (py == NULL) return -1;
    if (find(torch, "aoti_torch_get_data_ptr", &api.get_data_ptr) || find(torch, "aoti_torch_get_sizes", &api.get_sizes) ||
        find(torch, "aoti_torch_get_dim", &api.get_dim) ||
        find(torch, "aoti_torch_empty_strided", &api.empty_strided) ||
        find(torch, "aoti_torch__reinterpret_tensor", &api.reinterpret) ||
        find(torch, "aoti_torch_delete_tensor_object", &api.delete_tensor) ||
        find(torch, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", &api.bump_version) ||
        find(c10, "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE", &api.exclude_enter) ||
        find(c10, "_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev", &api.exclude_exit))
        return -1;
    find_ranges(&api, torch);
    void *what = dlsym(torch, "torch_exception_get_what_without_backtrace");
    memcpy(&api.exception_what, &what, sizeof what);
    void *storage_size = dlsym(torch, "aoti_torch_get_storage_size");
    memcpy(&api.get_storage_size, &storage_size, sizeof storage_size);
    void *buffer = dlsym(py, "_ZN5torch16PyWarningHandlerC1Ev"), *destroy = dlsym(py, "_ZN5torch16PyWarningHandlerD1Ev");
    if (buffer != NULL && destroy != NULL) {
        memcpy(&api.buffer_warnings, &buffer, sizeof buffer);
        memcpy(&api.destroy_warnings, &destroy, sizeof destroy);
    }
    /* By constant reference (2.12 on), else by value, which the C++ ABI passes as a hidden pointer to a caller-owned copy. */
    void *wrap = dlsym(py, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    if (wrap == NULL) wrap = dlsym(py, "_Z16THPVariable_WrapN2at10TensorBaseE");
    if (wrap == NULL) {
        PyErr_SetString(PyExc_ImportError, "this torch does not export THPVariable_Wrap");
        return -1;
    }
    memcpy(&api.wrap, &wrap, sizeof wrap);
    api.below_keys = below_keys;
    api.tensor_type = tensor_type;
    if (probe_slot(sample, cdata, &api.slot) || self_test(&api)) return -1;
    probe_use_count(&api, (char *)sample + api.slot, storage);
    api.ready = true;
    torch_api = api;
    torch_api.dispatches = dispatch_init(torch, (char *)sample + api.slot);
    return 0;
}
