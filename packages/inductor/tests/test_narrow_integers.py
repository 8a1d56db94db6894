"""Integers that fit 32 bits are computed in 32 bits."""

from __future__ import annotations

import torch

from flambeau_inductor.indexing.expressions import symbol
from flambeau_inductor.ir import Compute, Constant, IndexValue, Load
from flambeau_inductor.lowering.narrow_integers import narrow_integers

I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool
QUERY, KEY = symbol("i2"), symbol("r0")


def dtypes(statements: tuple[object, ...]) -> dict[str, torch.dtype]:
    return {one.name: one.dtype for one in statements}  # type: ignore[attr-defined]


def test_differences_of_positions_are_narrow() -> None:
    body = (
        IndexValue("v0", I64, QUERY),
        IndexValue("v1", I64, KEY),
        Compute("v2", I64, "sub", ("v1", "v0")),
        Compute("v3", F32, "cast", ("v2",)),
        Compute("v4", BOOL, "ge", ("v0", "v1")),
    )
    got = dtypes(narrow_integers(body, {"i2": 4096, "r0": 4096}))
    assert got == {"v0": I32, "v1": I32, "v2": I32, "v3": F32, "v4": BOOL}


def test_what_may_overflow_stays_wide() -> None:
    body = (
        IndexValue("v0", I64, QUERY),
        Compute("v1", I64, "mul", ("v0", "v0")),
        Constant("v2", I64, 3),
        Compute("v3", I64, "add", ("v1", "v2")),
        Compute("v4", BOOL, "lt", ("v3", "v0")),
    )
    got = narrow_integers(body, {"i2": 1 << 20})
    by_name = dtypes(got)
    assert by_name["v0"] is I32 and by_name["v1"] is I64 and by_name["v3"] is I64
    (product,) = [one for one in got if getattr(one, "op", "") == "mul"]
    assert {by_name[arg] for arg in product.args} == {I64}  # type: ignore[union-attr]
    (compared,) = [one for one in got if getattr(one, "op", "") == "lt"]
    assert {by_name[arg] for arg in compared.args} == {I64}  # type: ignore[union-attr]
    short = dtypes(narrow_integers(body, {"i2": 1000}))
    assert set(short.values()) == {I32, BOOL}


def test_axes_without_a_bound_and_loads_stay_wide() -> None:
    body = (
        IndexValue("v0", I64, QUERY),
        Load("v1", I64, "b0", QUERY),
        Compute("v2", BOOL, "eq", ("v0", "v1")),
    )
    assert dtypes(narrow_integers(body, {})) == {"v0": I64, "v1": I64, "v2": BOOL}


def test_an_index_names_a_wide_value() -> None:
    body = (
        IndexValue("v0", I64, QUERY),
        Compute("v1", I64, "add", ("v0", "v0")),
        Load("v2", F32, "b0", 8 * symbol("v1") + KEY),
    )
    got = narrow_integers(body, {"i2": 100, "r0": 100})
    (load,) = [one for one in got if isinstance(one, Load)]
    (name,) = {s.name for s in load.index.free_symbols} - {"r0"}
    assert dtypes(got)[name] is I64
