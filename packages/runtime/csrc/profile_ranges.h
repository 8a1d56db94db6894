/* Ranges that profilers see: one for each call of a Program, and in it one for each kernel and each call of an operator.
 *
 * They are torch's own (RecordFunction), so torch.profiler shows them, emit_nvtx hands them to Nsight, and emit_itt to VTune.
 * Where nothing listens, a call pays one look at two flags.
 */
#ifndef FLAMBEAU_PROFILE_RANGES_H
#define FLAMBEAU_PROFILE_RANGES_H

#include "executor.h"

/* Whether a profiler listens to this thread. */
bool profile_active(void);

/* Open a range; NULL if torch refuses. */
void *profile_begin(const char *name);

/* Close a range; NULL is none. */
void profile_end(void *range);

/* The name of the step at `pc`, NULL if it has none. */
const char *profile_name_of(const Executor *ex, const int64_t *pc);

/* Keep the names of an executor: its own, and a tuple of (offset in the code, name) in the order of offsets.  0, or -1 with an
 * exception set. */
int profile_names_init(Executor *ex, PyObject *title, PyObject *names);

void profile_names_clear(Executor *ex);

#endif
