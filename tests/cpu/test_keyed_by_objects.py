"""Dicts and sets of the program that hold its own objects: hashed by identity, or by `__hash__` and
`__eq__` written in Python.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau_capture import state_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Plain:
    """Hashed by identity."""


class Named:
    """Hashed by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name


class Colliding(Named):
    def __hash__(self) -> int:
        return 7


class Counting:
    """Whose hash has an effect."""

    def __init__(self) -> None:
        self.asked = 0

    def __hash__(self) -> int:
        self.asked += 1
        return 5


class World:
    def __init__(self, kind: Callable[[str], Named]) -> None:
        self.kind = kind
        self.table = {kind(name): at for at, name in enumerate("abc")}
        self.names = {kind(name) for name in "ace"}


def looks_up(world: World, x: torch.Tensor, name: str) -> Any:
    key = world.kind(name)
    return x + world.table.get(key, 100), key in world.table, key in world.names


def iterates(world: World, x: torch.Tensor, name: str) -> Any:
    return [(key.name, x + at) for key, at in world.table.items()], len(world.names)


def changes(world: World, x: torch.Tensor, name: str) -> Any:
    world.table[world.kind(name)] = len(name)
    world.names.add(world.kind(name))
    world.names.discard(world.kind("c"))
    removed = world.table.pop(world.kind("b"), None)
    return x + len(world.table) + len(world.names), removed


def shown(world: World) -> Any:
    return [(key.name, at) for key, at in world.table.items()], {key.name for key in world.names}


@pytest.mark.parametrize("kind", [Named, Colliding])
@pytest.mark.parametrize("program", [looks_up, iterates, changes])
def test_keys_with_methods_in_python(
    program: Callable[..., Any], kind: Callable[[str], Named]
) -> None:
    world, twin = World(kind), World(kind)
    compiled = flambeau.compile(program, backend="eager", fullgraph=True)
    for name in ("a", "d", "b", "a"):
        x = torch.randn(2)
        got, want = compiled(world, x, name), program(twin, x, name)
        assert str(got) == str(want)
        assert shown(world) == shown(twin)


def test_an_attribute_that_a_hash_reads_is_guarded() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + table.get(Named("a"), 100)

    table = {Named("a"): 1, Named("b"): 2}
    compiled = flambeau.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    assert torch.equal(compiled(x), x + 1)
    table[Named("a")] = 5
    assert torch.equal(compiled(x), x + 5)
    key = next(iter(table))
    del table[key]
    key.name = "z"
    table[key] = 9
    assert torch.equal(compiled(x), program(x)) and torch.equal(program(x), x + 100)


def test_a_hash_with_an_effect_is_left_to_eager() -> None:
    key = Counting()
    table = {key: 1}

    def program(x: torch.Tensor) -> Any:
        return x + table[key], key.asked

    compiled = flambeau.compile(program, backend="eager")
    x = torch.randn(2)
    for _ in range(2):
        key.asked = 0
        assert compiled(x)[1] == 1
    assert key.asked == 1


@pytest.mark.parametrize("make", [Plain, lambda: nn.Linear(2, 2)])
def test_members_by_identity(make: Callable[[], Any]) -> None:
    members = [make() for _ in range(3)]
    table, group = {member: at for at, member in enumerate(members)}, set(members[:2])

    def program(x: torch.Tensor, thing: Any) -> Any:
        return x + (1 if thing in table else 0), table.get(thing), thing in group

    compiled = flambeau.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    for thing in (make(), members[0], members[2], make(), members[1]):
        assert str(compiled(x, thing)) == str(program(x, thing))


def test_a_set_of_modules_grows() -> None:
    modules = [nn.Linear(2, 2) for _ in range(3)]
    seen = set(modules[:1])

    def program(x: torch.Tensor, module: nn.Module) -> Any:
        is_new = module not in seen
        seen.add(module)
        return module(x) if is_new else x

    compiled = flambeau.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    for module in (modules[0], modules[1], modules[1], modules[2]):
        before = copy.copy(seen)
        want = program(x, module)
        after = copy.copy(seen)
        seen.clear()
        seen.update(before)
        torch.testing.assert_close(compiled(x, module), want)
        assert seen == after
    assert all(event.kind != "break" for event in state_of(compiled).events)
