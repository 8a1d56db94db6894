"""Guards checked by C and by the Python reference, which must agree."""

from __future__ import annotations

import types
from typing import Any

import torch

from flambeau_capture.core import core
from flambeau_capture.events import failure_of
from flambeau_capture.guards import kinds, program, tensor_layout
from flambeau_capture.guards.kinds import TensorPayload
from flambeau_capture.record import Guard
from flambeau_capture.sources import (
    Argument,
    Scope,
    Source,
)
from flambeau_prims.spec import Spec, spec_of

X = Argument("x", 0)
Y = Argument("y", 1)


def function(x, y=None):
    return x


class Thing:
    level = 3

    def __init__(self) -> None:
        self.value = 1
        self.items = [1, 2.5, "a"]
        self.table = {"a": 1, "b": 2}

    def method(self):
        return self.value


class Slotted:
    __slots__ = ("value",)


def slotted():
    made = Slotted()
    made.value = 5
    return made


def tensor_guard(source: Source, tensor: torch.Tensor, spec: Spec | None = None) -> Guard:
    words = core.tensor_words(tensor) if core is not None and tensor_layout.configure() else None
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return Guard(
        "TENSOR",
        source,
        TensorPayload(type(tensor), spec or spec_of(tensor), tensor.requires_grad, keys, words),
    )


def verdict(
    guards: list[Guard], arguments: tuple[Any, ...], called: types.FunctionType = function
) -> int | None:
    """Index of the failing guard. C and the reference must agree on whether there is one; C may
    meet another of several first.
    """
    reference = program.first_failing(guards, Scope(called, arguments))
    made = program.guard_program(guards, (), len(arguments))
    for _ in range(2):  # the second time by what the first remembered of dicts
        found = made.failed(called, arguments)
        assert (found is None) == (reference is None), [kinds.guard_text(guard) for guard in guards]
        assert found is None or not program.holds(guards[found], Scope(called, arguments)), (
            kinds.guard_text(guards[found])
        )
    if reference is not None:
        assert failure_of(guards, Scope(called, arguments)).found
    return reference
