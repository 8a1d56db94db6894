"""Along which axis a kernel's vectors go: that of most elements, not of most operands."""

from __future__ import annotations

import torch
from run_cpp import I0, I1, R0, R1, Library, axes, params

from flambeau_inductor.codegen.cpp.plan import choose_plan, column_block
from flambeau_inductor.ir import Compute, Load, LoopKernel, Reduce, Store

F32 = torch.float32


def scaled_rows(rows: int, width: int) -> LoopKernel:
    """b6[i0, i1] is b0[i0, i1] times b1[i0] ... b5[i0], as in the gradient of a cross entropy."""
    body = [Load("v0", F32, "b0", I0 * width + I1)]
    for number in range(1, 6):
        body.append(Load(f"w{number}", F32, f"b{number}", I0))
        body.append(Compute(f"v{number}", F32, "mul", (f"v{number - 1}", f"w{number}")))
    body.append(Store("b6", I0 * width + I1, "v5"))
    described = [*[(F32, "read")] * 6, (F32, "write")]
    return LoopKernel("cpu", params(*described), (), axes((I0, rows), (I1, width)), (), tuple(body))


def windows(rows: int, width: int) -> LoopKernel:
    """b1[i0, i1] is the sum of 2 x 2 elements, as in the gradient of a doubled image."""
    body = (
        Load("v0", F32, "b0", I0 * 4 * width + I1 * 2 + R0 * 2 * width + R1),
        Reduce("v1", F32, "sum", "v0"), Store("b1", I0 * width + I1, "v1"),
    )  # fmt: skip
    described = ((F32, "read"), (F32, "write"))
    outer, inner = axes((I0, rows), (I1, width)), axes((R0, 2), (R1, 2))
    return LoopKernel("cpu", params(*described), (), outer, inner, body)


def test_rows_with_many_factors() -> None:
    kernel = scaled_rows(512, 1024)
    plan = choose_plan(kernel)
    assert plan.vector.symbol == I1 and plan.tile is None
    tensors = [torch.randn(512, 1024), *torch.randn(5, 512), torch.empty(512, 1024)]
    Library({"rows": kernel}).check("rows", tensors)


def test_windows() -> None:
    """They are summed side by side along the row that is stored, in arrays of its length."""
    kernels = {"wide": windows(4096, 64), "odd": windows(300, 17), "longer": windows(3, 1000)}
    library = Library(kernels)
    for name, kernel in kernels.items():
        rows, width = (axis.size for axis in kernel.outer)
        plan = choose_plan(kernel)
        assert plan.kind == "columns" and plan.vector.symbol == I1
        assert column_block(kernel, plan.vector) == -(-width // 16) * 16
        library.check(name, [torch.randn(rows * 2, width * 2), torch.empty(rows, width)])
