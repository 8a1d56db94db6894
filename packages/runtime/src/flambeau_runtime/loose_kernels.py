"""C++ kernels as Python functions, for `output_code` files and for trying a kernel by hand.

add, = cpp_kernels(text, "add")
add([x, y, out], [x.numel()])
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from flambeau_runtime.build import cpp
from flambeau_runtime.options import RuntimeOptions

LooseKernel = Callable[..., None]


def cpp_kernels(
    text: str, *names: str, options: RuntimeOptions | None = None
) -> tuple[LooseKernel, ...]:
    """Build a source (or take it from the cache); one function a name, called with tensors and
    ints.

    A name that ends in "!" is a checked kernel: it returns a status, and the function raises
    IndexError if that is not 0.
    """
    (library,) = cpp.load_libraries([text], options or RuntimeOptions())
    return tuple(_function(library, name.removesuffix("!"), name.endswith("!")) for name in names)


def _function(library: ctypes.CDLL, name: str, checked: bool) -> LooseKernel:
    function = getattr(library, name)
    function.restype = ctypes.c_int64 if checked else None

    def run(buffers: Sequence[torch.Tensor], ints: Sequence[int] = ()) -> None:
        pointers = (ctypes.c_void_p * len(buffers))(*[buffer.data_ptr() for buffer in buffers])
        if function(pointers, (ctypes.c_int64 * len(ints))(*ints)):
            raise IndexError(f"index out of bounds in {name}")

    run.__name__ = name
    return run
