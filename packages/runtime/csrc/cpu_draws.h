/* Draws of eager's generator on a CPU. */
#ifndef FLAMBEAU_CPU_DRAWS_H
#define FLAMBEAU_CPU_DRAWS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *draw_coins(PyObject *module, PyObject *args);

#endif
