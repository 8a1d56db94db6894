/* Recordings: a call of a Program as one executable CUDA graph, replayed on other inputs. */
#ifndef FLAMBEAU_RECORDING_H
#define FLAMBEAU_RECORDING_H

#include "executor.h"

typedef struct Recording Recording;

extern PyTypeObject RecordingType, CapturedGraphType;

/* new_stream() -> handle, begin_capture(stream), end_capture(stream) -> CapturedGraph: functions of the module. */
PyObject *new_stream(PyObject *module, PyObject *nothing);
PyObject *begin_capture(PyObject *module, PyObject *stream);
PyObject *end_capture(PyObject *module, PyObject *stream);

/* Whether a recording serves a call, or why not. */
enum Match {
    MATCH,
    MATCH_OTHER, /* another stream, other sizes or other settings of libraries */
    MATCH_MOVED, /* an input that stands in library calls has another address */
    MATCH_HELD,  /* the caller still holds what the last replay returned in place, or is in the middle of one */
};

/* `spending`: nobody reads the arguments after the call, so a recording may overwrite those that it frees. */
enum Match recording_match(const Recording *recording, PyObject *const *args, const void *stream, const int64_t *symbols,
                           PyObject *settings, int spending);

/* Launch the graph for these arguments, which it must match; the outputs as a tuple, or NULL with an exception set. */
PyObject *recording_replay(Recording *recording, PyObject *const *args);

#endif
