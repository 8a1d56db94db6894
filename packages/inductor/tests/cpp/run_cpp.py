"""Shared by the C++ tests: build kernels of the loop IR in one source, and run them on tensors."""

from __future__ import annotations

import ctypes
import platform
import tempfile
from pathlib import Path

import torch

from flambeau_inductor.codegen.cpp.backend import write_source
from flambeau_inductor.codegen.cpp.writer import is_checked
from flambeau_inductor.evaluate import run_kernel
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Axis, LoopKernel, Param
from flambeau_runtime import RuntimeOptions
from flambeau_runtime.build import cpp

CACHE = tempfile.TemporaryDirectory(prefix="flambeau-test-")
# No variable of a kernel hides another: an outer loop's may be needed inside.
cpp.BASE_FLAGS = (
    *(flag for flag in cpp.BASE_FLAGS if flag != "-w"), "-Wshadow=local", "-Werror=shadow=local"
)  # fmt: skip
OPTIONS = RuntimeOptions(cache_dir=Path(CACHE.name) / "cache")
"""How kernels are built; `--isa` changes the level (see conftest.py)."""

I0, I1, I2, R0, R1, K0, K1 = (symbol(name) for name in ("i0", "i1", "i2", "r0", "r1", "k0", "k1"))


def params(*described) -> tuple[Param, ...]:
    """(dtype, access) pairs as b0, b1, ..."""
    return tuple(Param(f"b{n}", dtype, access) for n, (dtype, access) in enumerate(described))


def axes(*pairs) -> tuple[Axis, ...]:
    return tuple(Axis(name, size) for name, size in pairs)


def x87_is_empty() -> bool:
    """Whether no register of x87 is in use, as between functions that return none."""
    if platform.machine() != "x86_64":
        return True
    environment = (ctypes.c_uint16 * 16)()
    ctypes.CDLL("libm.so.6").fegetenv(environment)
    return environment[4] == 0xFFFF


class Library:
    """Kernels, built together."""

    def __init__(
        self, kernels: dict[str, LoopKernel], options: RuntimeOptions | None = None
    ) -> None:
        self.kernels = kernels
        self.text = write_source([(kernel, name) for name, kernel in kernels.items()])
        (path,) = cpp.build([self.text], options or OPTIONS)
        self.library = ctypes.CDLL(str(path))

    def run(self, name: str, tensors, ints=()) -> int:
        """Run on the tensors' memory; the kernel's status (0 if it has none)."""
        function = getattr(self.library, name)
        function.restype = ctypes.c_int64 if is_checked(self.kernels[name]) else None
        buffers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        status = function(buffers, (ctypes.c_int64 * len(ints))(*ints)) or 0
        assert x87_is_empty(), "long doubles would be wrong from here on"
        return status

    def check(self, name: str, tensors, ints=(), **tolerance) -> None:
        """Compare with the reference evaluator, on copies."""
        expected = [t.clone() for t in tensors]
        run_kernel(self.kernels[name], expected, ints)
        assert self.run(name, tensors, ints) == 0
        for ours, theirs in zip(tensors, expected, strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
