# ruff: noqa: UP006, UP013, UP014, UP045 - the older spellings are what is tested
"""What the typing module makes, names, keeps and refuses: compiled as eagerly."""

from __future__ import annotations

import collections
import contextlib
import io
import typing

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture

T0 = typing.TypeVar("T0")


def modules_of_callers(x):
    named = typing.NamedTuple("Named", [("a", int)])
    typed = typing.TypedDict("Typed", {"k": "T0"})
    made = (
        typing.TypeVar("T"),
        typing.ParamSpec("P"),
        typing.NewType("N", int),
        named,
        typed,
        collections.namedtuple("Plain", "a"),
    )
    reference = typed.__annotations__["k"]
    return x + 1, [item.__module__ for item in made], reference.__forward_module__, named(a=4)


def aliases_across_a_break(x):
    local = typing.TypeVar("T")
    shared = typing.List[T0], typing.Sequence[int], typing.Optional[T0], typing.Callable[[int], str]
    own = list[local], typing.List[local], typing.Dict[str, local], tuple[int, *tuple[local, ...]]
    names = [typing.Union, typing.Sequence, typing.Any]
    torch._dynamo.graph_break()
    again = (
        typing.List[T0],
        typing.Sequence[int],
        typing.Optional[T0],
        typing.Callable[[int], str],
    )
    return (
        x + 1,
        [a is b for a, b in zip(shared, again, strict=True)],
        [alias.__args__[-1] is local for alias in own[:3]],
        [alias.__parameters__ == (local,) for alias in own],
        own[3] == tuple[int, *tuple[local, ...]],
        [a is b for a, b in zip(names, (typing.Union, typing.Sequence, typing.Any), strict=True)],
    )


def instances_of_aliases(x):
    class Generic(typing.Generic[T0]):
        pass

    class Frozen(typing.Generic[T0]):
        def __setattr__(self, name, value):
            raise AttributeError(name)

    found = [Generic[int]().__orig_class__.__args__, vars(Frozen[int]())]
    for alias in (typing.List, typing.Dict, typing.Tuple[int], typing.FrozenSet[int]):
        try:
            alias()
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def functions_with_effects(x):
    def overloaded(a):
        return a

    with contextlib.redirect_stderr(io.StringIO()) as shown:
        typing.reveal_type(5)
    before = len(typing.get_overloads(overloaded))
    typing.overload(overloaded)
    return x + 1, shown.getvalue(), before, len(typing.get_overloads(overloaded))


@pytest.mark.parametrize(
    "program",
    [modules_of_callers, aliases_across_a_break, instances_of_aliases, functions_with_effects],
)
def test_same_as_eager(program):
    x = torch.ones(3)
    compiled = flambeau_capture.compile(program, backend=run_graph)
    typing.clear_overloads()
    wanted = repr(program(x))
    for _ in range(2):
        typing.clear_overloads()
        assert repr(compiled(x)) == wanted
