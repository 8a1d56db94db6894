/* What torch warns of while a Program runs becomes Python warnings, as in eager. */
#ifndef FLAMBEAU_WARNINGS_H
#define FLAMBEAU_WARNINGS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { WARNING_BUFFER_BYTES = 256 };

typedef void (*WarningFunction)(void *buffer);

/* Give the warnings of a buffer to Python and take the buffer off the thread, under the GIL and with no exception set: 0, or
 * -1 with an exception set where a filter turned a warning into one. */
int flush_warnings(WarningFunction destroy, void *buffer);

#ifdef __cplusplus
}
#endif
#endif
