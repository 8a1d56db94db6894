"""Programs as Python files: kernels of GPUs, which no test here can run."""

from __future__ import annotations

import ast

from flambeau_runtime import output_code
from flambeau_runtime.program import Allocate, Free, Kernel, Launch, Program, Source, Tensor


def test_scratch_memory_is_no_argument_of_a_kernel() -> None:
    """Triton allocates it where Triton launches."""
    meta = {"constants": {"XBLOCK": 64}, "num_warps": 4, "num_stages": 3}
    names = ("x", "y")
    for scratch in (0, 256):
        program = Program(
            inputs=names,
            tensors=(
                *(Tensor(name, (8,), (1,), "float32", "cuda:0") for name in names),
                Tensor("memory", (1024,), (1,), "uint8", "cuda:0"),
            ),
            symbols=(),
            sources=(Source("triton", "def copy(x, y, XBLOCK): ..."),),
            kernels=(Kernel("copy", 0, meta | ({"scratch": scratch} if scratch else {})),),
            steps=(
                Allocate("memory"),
                Launch("copy", (*names, "memory"), (), (4,)),
                Free("memory"),
            ),
            outputs=(),
        )
        text = output_code(program)
        ast.parse(text)
        buffers = "x, y" if scratch else "x, y, memory"
        assert f"copy[(4,)]({buffers}, XBLOCK=64, num_warps=4, num_stages=3)" in text
        assert ("triton.set_allocator(" in text) == bool(scratch)
