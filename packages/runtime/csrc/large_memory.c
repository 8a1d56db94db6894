/* A result of more than some MiB comes from fresh pages, which the kernel clears one by one when they are first touched: that
 * takes longer than writing them from a kernel of ours.  Two means against it:
 *
 *   - fresh memory asks for huge pages: one fault clears 2 MiB. In a Program's first call only what is KEPT_LEAST or more asks:
 *     for many smaller results the system may have to collect huge pages first, which costs more than one call gains;
 *   - memory that malloc would give back to the system with each tensor (KEPT_LEAST bytes and more) is kept: a flat alias of
 *     the tensor's storage, which later calls use again once nobody else holds the storage.
 *
 * What is kept is bounded (`budget`), the longest unused goes first.  Memory that changed below its storage (resized, moved
 * to shared memory) is let go.
 */
#include "large_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEPT = 16 };
static const int64_t HUGE_LEAST = 4 << 20, KEPT_LEAST = 32 << 20, KEPT_MOST = 256 << 20;

typedef struct {
    Handle alias; /* NULL: nothing is kept here */
    void *data;
    int64_t extent, bytes;
    uint64_t used; /* when, by the count of allocations */
    int32_t dtype;
} Kept;

static Kept kept[KEPT];
static int64_t kept_bytes;
static uint64_t clock_of_uses;
/* Only ever tried: in a child that was forked while another thread held it, nothing is kept. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* How many bytes may be kept: a small share of the machine's memory. */
static int64_t budget(void)
{
    const int64_t share = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 32;
    return share < KEPT_MOST ? share : KEPT_MOST;
}

/* How many elements the storage of a dense or gapped tensor spans. */
static int64_t extent_of(int64_t ndim, const int64_t *sizes)
{
    int64_t last = 0;
    for (int64_t i = 0; i < ndim; i++) {
        if (sizes[i] == 0) return 0;
        last += (sizes[i] - 1) * sizes[ndim + i];
    }
    return last + 1;
}

/* Advice only, for whole pages around the memory: what the system refuses is as it was. */
static void prefer_huge_pages(void *data, int64_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    const uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes + page - 1) & ~(page - 1);
    madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#endif
}

static void forget(Kept *one)
{
    const Handle alias = one->alias;
    kept_bytes -= one->bytes;
    one->alias = NULL;
    torch_api.delete_tensor(alias);
}

/* Whether only the alias holds the memory, which is where it was. */
static int is_free(Kept *one)
{
    void *data = NULL;
    int64_t bytes = 0;
    if (storage_use_count(one->alias) != 1) return 0;
    if (torch_api.get_data_ptr(one->alias, &data) == 0 && torch_api.get_storage_size(one->alias, &bytes) == 0 && data == one->data &&
        bytes == one->bytes)
        return 1;
    forget(one);
    return 0;
}

/* A new tensor in memory that is kept and free; 0 if there is none. */
static int take(int64_t ndim, const int64_t *sizes, int32_t dtype, int64_t extent, Handle *made)
{
    int taken = 0;
    if (pthread_mutex_trylock(&lock)) return 0;
    for (Kept *one = kept; one < kept + KEPT && !taken; one++) {
        if (one->alias == NULL || one->dtype != dtype || one->extent != extent || !is_free(one)) continue;
        one->used = ++clock_of_uses;
        taken = torch_api.reinterpret(one->alias, ndim, sizes, sizes + ndim, 0, made) == 0;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

/* Keep the memory of a fresh tensor, in the place of what was not used for longest. */
static void keep(Handle fresh, int32_t dtype, int64_t extent, void *data, int64_t bytes)
{
    const int64_t stride = 1, most = budget();
    if (bytes > most || pthread_mutex_trylock(&lock)) return;
    Kept *place = NULL;
    for (;;) {
        Kept *oldest = NULL;
        place = NULL;
        for (Kept *one = kept; one < kept + KEPT; one++) {
            if (one->alias == NULL) place = one;
            else if (oldest == NULL || one->used < oldest->used) oldest = one;
        }
        if (place != NULL && kept_bytes + bytes <= most) break;
        forget(oldest);
    }
    Handle alias = NULL;
    if (torch_api.reinterpret(fresh, 1, &extent, &stride, 0, &alias) == 0) {
        *place = (Kept){alias, data, extent, bytes, ++clock_of_uses, dtype};
        kept_bytes += bytes;
    }
    pthread_mutex_unlock(&lock);
}

int32_t large_memory_new(int64_t ndim, const int64_t *sizes, int32_t dtype, int again, Handle *made)
{
    const int64_t extent = extent_of(ndim, sizes);
    const int keeps = torch_api.use_count != 0 && torch_api.get_storage_size != NULL;
    if (keeps && extent >= KEPT_LEAST / 8 && take(ndim, sizes, dtype, extent, made)) return 0;
    const int32_t status = torch_api.empty_strided(ndim, sizes, sizes + ndim, dtype, 0 /* CPU */, 0, made);
    void *data = NULL;
    int64_t bytes = 0;
    if (status || torch_api.get_storage_size == NULL || torch_api.get_data_ptr(*made, &data) || torch_api.get_storage_size(*made, &bytes))
        return status;
    if (bytes >= (again ? HUGE_LEAST : KEPT_LEAST)) prefer_huge_pages(data, bytes);
    if (keeps && bytes >= KEPT_LEAST) keep(*made, dtype, extent, data, bytes);
    return 0;
}

void large_memory_release(void)
{
    if (pthread_mutex_trylock(&lock)) return;
    for (Kept *one = kept; one < kept + KEPT; one++)
        if (one->alias != NULL) forget(one);
    pthread_mutex_unlock(&lock);
}
