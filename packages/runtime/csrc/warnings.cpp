// The one file in C++: torch's buffer of warnings throws a C++ exception where a warning is an error.
#include "warnings.h"

int flush_warnings(WarningFunction destroy, void *buffer)
{
    try {
        destroy(buffer);
        return 0;
    } catch (...) { // the Python exception is set
        return -1;
    }
}
