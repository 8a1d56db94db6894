/* The PEP 523 frame-evaluation hook (placeholder switch; frames are not intercepted yet). */
#include "core.h"

int
hook_switch(int enabled)
{
    static __thread int current;
    int former = current;
    current = enabled;
    return former;
}

int
hook_init(PyObject *Py_UNUSED(module))
{
    return 0;
}

PyMethodDef hook_methods[] = {{NULL, NULL, 0, NULL}};
