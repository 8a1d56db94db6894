"""Indices that conditions choose: the same elements as the reference evaluator's, at every ISA
level. GCC 12 takes the condition for the index, vectorised 0 or -1.
"""

from __future__ import annotations

import dataclasses

import pytest
import run_cpp
import torch
from run_cpp import I0, K0, R0, Library, axes, params

from flambeau_inductor.codegen.cpp.hidden_integers import chosen_integers
from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Compute, Constant, Load, LoopKernel, Reduce, Statement, Store
from flambeau_runtime.build import isa

F32, F64, I64, I32, U8, BOOL = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
V = symbol("v")

POSITIVE = (
    Load("v_x", F32, "b1", I0), Constant("zero", F32, 0),
    Compute("v_c", BOOL, "gt", ("v_x", "zero")),
)  # fmt: skip
ONE, NONE = Constant("one", I64, 1), Constant("none", I64, 0)

INDICES: dict[str, tuple[Statement, ...]] = {
    "cast": (*POSITIVE, Compute("v", I64, "cast", ("v_c",))),
    "narrow": (
        *POSITIVE, Compute("v_n", I32, "cast", ("v_c",)), Compute("v", I64, "cast", ("v_n",)),
    ),
    "bytes": (*POSITIVE, Compute("v_n", U8, "cast", ("v_c",)), Compute("v", I64, "cast", ("v_n",))),
    "chosen": (*POSITIVE, ONE, NONE, Compute("v", I64, "where", ("v_c", "none", "one"))),
    "computed": (
        *POSITIVE, ONE, NONE, Compute("sum", I64, "add", ("none", "one")),
        Compute("v", I64, "where", ("v_c", "none", "sum")),
    ),
    "negative": (
        *POSITIVE, Constant("less", I64, -1), ONE, NONE,
        Compute("v_n", I64, "where", ("v_c", "less", "none")),
        Compute("v", I64, "add", ("v_n", "one")),
    ),
    "either": (
        *POSITIVE, Load("v_m", BOOL, "b2", I0), Compute("v_e", BOOL, "bitwise_xor", ("v_c", "v_m")),
        Compute("v", I64, "cast", ("v_e",)),
    ),
    "loaded": (*POSITIVE, Load("v_m", BOOL, "b2", I0), Compute("v", I64, "cast", ("v_m",))),
    "twice": (
        *POSITIVE, Load("v_m", BOOL, "b2", I0), Compute("v_a", I64, "cast", ("v_c",)),
        Compute("v_b", I64, "cast", ("v_m",)), Compute("v", I64, "add", ("v_a", "v_b")),
    ),
}  # fmt: skip


def gathered(index: tuple[Statement, ...], dtype: torch.dtype, step: int) -> LoopKernel:
    """b3[i0] = b0[step * v + 1], where this is not less than x, and the number of the index."""
    read = Load("v_t", dtype, "b0", step * V + 1)
    body = (*index, read, Store("b3", I0, "v_t"), Store("b4", I0, "v"))
    described = params(
        (dtype, "read"), (F32, "read"), (BOOL, "read"), (dtype, "write"), (I64, "write")
    )
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), (), body)


def searched() -> LoopKernel:
    """A search in two numbers: where the second load is, the first comparison tells."""
    body = (
        Load("v_x", F32, "b1", I0), NONE, ONE, Load("v_t", F32, "b0", symbol("none") * 0),
        Compute("v_c", BOOL, "ge", ("v_t", "v_x")), Compute("next", I64, "add", ("none", "one")),
        Compute("v", I64, "where", ("v_c", "none", "next")), Load("v_s", F32, "b0", V),
        Compute("v_d", BOOL, "ge", ("v_s", "v_x")), Compute("more", I64, "add", ("v", "one")),
        Compute("v_w", I64, "where", ("v_d", "v", "more")), Store("b2", I0, "v_w"),
    )  # fmt: skip
    described = params((F32, "read"), (F32, "read"), (I64, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), (), body)


def summed() -> LoopKernel:
    """A sum of gathered elements."""
    at = 100 * I0 + R0
    body = (
        Load("v_x", F32, "b1", at), Constant("zero", F32, 0),
        Compute("v_c", BOOL, "gt", ("v_x", "zero")), Compute("v", I64, "cast", ("v_c",)),
        Load("v_t", F32, "b0", V), Reduce("v_r", F32, "sum", "v_t"), Store("b2", I0, "v_r"),
    )  # fmt: skip
    described = params((F32, "read"), (F32, "read"), (F32, "write"))
    return LoopKernel("cpu", described, (K0,), axes((I0, K0)), axes((R0, 100)), body)


KERNELS = {
    f"{name}_{str(dtype).removeprefix('torch.')}_{step}": gathered(index, dtype, step)
    for name, index in INDICES.items()
    for dtype in (F32, F64, I64, I32, U8)
    for step in (1, 3)
} | {"searched": searched(), "summed": summed()}


@pytest.mark.parametrize("level", isa.LEVELS)
def test_values(level: str) -> None:
    if isa.LEVELS.index(level) < isa.LEVELS.index(isa.detect()):
        pytest.skip(f"this machine has no {level}")
    torch.manual_seed(0)
    library = Library(KERNELS, dataclasses.replace(run_cpp.OPTIONS, isa=level))
    for name, kernel in KERNELS.items():
        table = torch.arange(3.0, 43.0).to(kernel.params[0].dtype)[16:]
        for count in (1, 15, 64, 100):
            x, chosen = torch.randn(count), torch.rand(count) < 0.5
            if name == "searched":
                tensors = [torch.tensor([-0.3, 0.4]), x, torch.zeros(count, dtype=I64)]
            elif name == "summed":
                tensors = [table, torch.randn(count, 100), torch.zeros(count)]
            else:
                results = [torch.zeros(count, dtype=each) for each in (table.dtype, I64)]
                tensors = [table, x, chosen, *results]
            library.check(name, tensors, [count])


def test_what_is_hidden() -> None:
    assert chosen_integers(KERNELS["cast_float32_1"].body) == set()
    assert chosen_integers(KERNELS["chosen_float32_1"].body) == {"none", "one"}
    assert chosen_integers(searched().body) == {"none", "one"}
    stored = (*INDICES["cast"], Store("b4", I0, "v"))
    assert chosen_integers(stored) is None
    text = run_cpp.write_source([(dataclasses.replace(searched(), body=stored), "stored")])
    assert "hidden" not in text
