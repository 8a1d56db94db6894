from __future__ import annotations

import torch

from flambeau_prims.per_operator import per_operator


def test_a_fact_is_computed_once_for_each_operator() -> None:
    asked = []

    @per_operator
    def name(op: object) -> str:
        """Its name."""
        asked.append(op)
        return str(op)

    sin, cos = torch.ops.aten.sin.default, torch.ops.aten.cos.default
    assert [name(op) for op in (sin, cos, sin)] == ["aten.sin.default", "aten.cos.default"] + [
        "aten.sin.default"
    ]
    assert asked == [sin, cos]
    assert name.__doc__ == "Its name."


def test_an_operator_that_nobody_holds_keeps_its_fact_to_itself() -> None:
    identity = per_operator(lambda op: op.number)

    class Operator:
        def __init__(self, number: int) -> None:
            self.number = number

    # Each may get the address of the one before, if that is freed.
    assert [identity(Operator(number)) for number in range(100)] == list(range(100))
