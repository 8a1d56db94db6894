/* The module flambeau_capture._core: types, and the functions of each part. */
#include "core.h"

#ifndef SOURCE_HASH
#define SOURCE_HASH "unknown"
#endif

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "flambeau_capture._core",
    .m_doc = "What runs on every call of a compiled function: argument binding, guard programs, entries, the frame hook.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &Program_Type) < 0 || PyModule_AddType(module, &Entry_Type) < 0 ||
        PyModule_AddType(module, &Compiled_Type) < 0 || PyModule_AddType(module, &FrameHandler_Type) < 0 ||
        PyModule_AddType(module, &Tail_Type) < 0 ||
        PyModule_AddFunctions(module, tensor_methods) < 0 || PyModule_AddFunctions(module, program_functions) < 0 ||
        PyModule_AddFunctions(module, compiled_functions) < 0 || PyModule_AddFunctions(module, tail_functions) < 0 ||
        PyModule_AddFunctions(module, hook_methods) < 0 ||
        PyModule_AddStringConstant(module, "source_hash", SOURCE_HASH) < 0 || hook_init(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
