"""The table, the protocol and the implementers of the scalar operators agree."""

from __future__ import annotations

import inspect

import pytest

from flambeau_inductor.codegen.base import BACKENDS, backend_for
from flambeau_inductor.evaluate import Evaluator
from flambeau_inductor.ir import REDUCE_KINDS
from flambeau_inductor.lowering.reduction import REDUCTIONS
from flambeau_inductor.scalar_ops import SCALAR_OPS, ScalarOps, install
from flambeau_prims.primitives import PRIMS, Kind
from flambeau_prims.unsupported import NoCodeGenerator

OTHERS = {
    "bind", "constant", "index_value", "load", "store", "scatter", "check_index", "reduce",
    "reduce_columns", "reduce_tile", "scan", "sort",
}  # fmt: skip


def test_the_table_is_the_pointwise_primitives():
    primitives = {prim.name for prim in PRIMS.values() if prim.kind is Kind.POINTWISE}
    assert set(SCALAR_OPS) == primitives | {"float_of_bits", "philox"}
    for name in primitives:
        op = SCALAR_OPS[name]
        assert op.name == name and op.cost > 0
        assert op.arity == len(
            [kind for _, kind in PRIMS[name].params if kind in ("operand", "tensor")]
        )


def test_the_protocol_has_the_operators_of_their_own_form():
    """The others take their operands and the dtype."""
    methods = {
        name
        for name, member in vars(ScalarOps).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    assert methods == {"where", "cast", "float_of_bits", "philox"} | OTHERS


def test_only_operators_are_installed():
    with pytest.raises(ValueError, match="add2 is no scalar operator"):
        install(type("Implementer", (), {}), {"add2": lambda a, b, dtype: a})


def test_the_evaluator_has_every_operator():
    for name in set(SCALAR_OPS) | OTHERS:
        assert callable(getattr(Evaluator, name))


def test_reductions_have_kinds():
    assert set(REDUCTIONS.values()) == set(REDUCE_KINDS)
    assert set(REDUCTIONS) == {prim.name for prim in PRIMS.values() if prim.kind is Kind.REDUCTION}


def test_unknown_device_is_an_error():
    with pytest.raises(
        NoCodeGenerator, match="no code generator for device 'mps:0'; there are: cpu, cuda"
    ):
        backend_for("mps:0")
    assert set(BACKENDS) == {"cpu", "cuda"}
