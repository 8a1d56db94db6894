"""Every operator that can be traced has a decomposition, or a reason for staying ATen's."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.decompositions import extern
from flambeau_prims.decompositions.registry import decomposition, registered
from flambeau_prims.primitives import PRIMS
from flambeau_prims.rules.registry import is_mutating
from flambeau_prims.rules.registry import registered as rules

aten = torch.ops.aten


def test_every_operator_is_accounted_for() -> None:
    known = set(registered())
    traceable = [
        op for op in rules() if not is_mutating(op) and "name" not in op._overloadname.lower()
    ]  # no named tensors
    open_ = [op for op in traceable if op not in known and extern.reason_for(op) is None]
    assert not open_, (
        f"neither decomposed nor in decompositions/extern.py: {sorted(map(str, open_))}"
    )


def test_reasons_are_given_once() -> None:
    names = [name for names in extern.REASONS.values() for name in names]
    assert len(names) == len(set(names))
    fully_decomposed = {op._schema.name.removeprefix("aten::") for op in registered()} & set(names)
    # Of these the table means the overloads view.dtype, _foreach_addc*.Tensor and scatter.reduce,
    # reductions of scatter_reduce other than sums, bernoulli of a tensor of probabilities, random
    # without bounds, normal of tensors, polygamma of high orders, distances by products, many
    # members of isin, reductions on a GPU, and bags whose lengths are data.
    partly = {"view", "_foreach_addcmul", "_foreach_addcdiv", "scatter", "scatter_reduce"}
    partly |= {"bernoulli", "random", "normal", "polygamma", "_cdist_forward", "isin"}
    partly |= {"index_reduce"}
    assert fully_decomposed == partly | {name for name in names if "_embedding_bag" in name}


def test_decompositions_are_of_functional_operators() -> None:
    assert not [op for op in registered() if is_mutating(op)]


def test_a_second_decomposition_is_refused() -> None:
    with pytest.raises(ValueError, match="already"):
        decomposition(aten.silu.default)(lambda b, x: x)


def test_a_primitive_is_its_name() -> None:
    assert all(str(prim) == f"prims.{name}" for name, prim in PRIMS.items())
