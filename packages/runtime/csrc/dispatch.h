/* Calls of operators through torch's dispatcher, by libtorch's C interface: no Python object is made for them.
 *
 * An argument is described in the code of a Program by one of
 *   ARGUMENT_WORD value            an int, bool, dtype or device, a double's bits, or an absent optional (0)
 *   ARGUMENT_VALUE index           the same, from the table of values
 *   ARGUMENT_TENSOR slot
 *   ARGUMENT_STRING object         bytes
 *   ARGUMENT_SOME argument         an optional that is there
 *   ARGUMENT_LIST n argument...
 */
#ifndef FLAMBEAU_DISPATCH_H
#define FLAMBEAU_DISPATCH_H

#include "executor.h"

enum Argument { ARGUMENT_WORD, ARGUMENT_VALUE, ARGUMENT_TENSOR, ARGUMENT_STRING, ARGUMENT_SOME, ARGUMENT_LIST };
enum { MAX_OPERANDS = 40 }; /* arguments or results of an operator */

/* Find what these calls need in this torch, and make one.  Whether they can be made; never sets an exception. */
bool dispatch_init(void *libtorch, Handle sample);

/* Call an operator; pc points at: operator overload n_results result_slot(-1)... n_arguments argument...
 * False if it failed, with nothing kept and no exception set: the caller makes the call through Python, which raises. */
bool dispatch_call(Call *call, const int64_t *pc);

#endif
