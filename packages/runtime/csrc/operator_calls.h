/* Calls of operators through Python. */
#ifndef FLAMBEAU_OPERATOR_CALLS_H
#define FLAMBEAU_OPERATOR_CALLS_H

#include "executor.h"

/* Call an operator; pc points at: operator positional keywords(-1) message n_outputs output(-1)...  0, or -1 with an
 * exception set, which names the operator. */
int operator_call(Call *call, const int64_t *pc);

#endif
