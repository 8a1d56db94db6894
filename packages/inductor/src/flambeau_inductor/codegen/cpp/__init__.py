"""The code generator for CPUs: header-free C++ with OpenMP, vectorised by GCC."""
