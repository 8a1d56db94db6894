"""Tensor subclasses, duck-typed tensors and tensors' own attributes under compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flambeau
from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable


class Plain(torch.Tensor):
    """Nothing of its own: results are of the class."""


class Logged(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(torch.Tensor):
    """Carries a number along."""

    scale: float

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: float = 1.0) -> Scaled:
        made = torch.Tensor._make_subclass(cls, data)
        made.scale = scale
        return made

    def __init__(self, data: torch.Tensor, scale: float = 1.0) -> None:
        self.note = "made"

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def times(self, factor: float) -> Any:
        return self * factor * self.scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scale = max((arg.scale for arg in args if isinstance(arg, Scaled)), default=1.0)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and func is not torch.Tensor.detach:
            result = result.as_subclass(cls)
            result.scale = scale + 1
        return result


class Outer(Scaled):
    """A subclass of a subclass is asked first, and may decline."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.cos:
            return "cosine"
        if func is torch.sin:
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Duck:
    """No tensor, but torch functions take it."""

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.add:
            return "added"
        return func(
            *[arg.inner if isinstance(arg, Duck) else arg for arg in args], **(kwargs or {})
        )


class Weight(nn.Parameter):
    def rows(self) -> int:
        return self.shape[0]


def checked(
    program: Callable[..., Any], make: Callable[[], Any], *, whole: bool = True, **options: Any
) -> Any:
    world = lambda: World(program, lambda call: (make(),))  # noqa: E731
    return compare(world, fullgraph=whole, **options)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_results_are_of_the_class(backend: str) -> None:
    def program(x: Any) -> Any:
        first, *_ = x
        y = F.relu(x) @ x.t() + 1
        types = isinstance(x, Plain), type(y) is Plain, isinstance(y, torch.Tensor), type(x[0])
        return y, first, x.T, x.shape, x.max(dim=0).values, torch.cat([x, x]), len(x), *types

    checked(program, lambda: torch.randn(3, 4).as_subclass(Plain), backend=backend)


def test_in_place() -> None:
    def program(x: Any) -> Any:
        x.add_(1)
        x[0] = 5
        return x

    checked(program, lambda: torch.randn(3, 4).as_subclass(Plain))


def test_gradients_reach_the_leaf() -> None:
    def make() -> World:
        leaf = torch.randn(3, requires_grad=True)
        return World(lambda x: (x * x).sum(), lambda call: (leaf.as_subclass(Plain),), lambda: leaf)

    compare(make, backward=True, fullgraph=True)


def test_the_handler_is_told_what_eager_tells_it() -> None:
    def program(x: Any) -> Any:
        Logged.calls.clear()
        y = 1 - x + x[0] * 2
        z = torch.exp(y).sum(dim=-1)
        x.shape
        F.relu(x)
        torch.stack([x, x])
        return y, z, list(Logged.calls)

    def make() -> Any:
        Logged.calls.clear()
        return torch.randn(3).as_subclass(Logged)

    checked(program, make, backend="eager")


def test_attributes_methods_and_properties() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        z = y.times(2.0)
        return y, y.scale, z, z.scale, x.doubled

    checked(program, lambda: Scaled(torch.randn(3), 2.0), backend="eager")


def test_made_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Scaled(x, 3.0)
        twice = made * 2
        return made, made.scale, made.note, twice.scale, twice.detach(), isinstance(twice, Scaled)

    checked(program, lambda: torch.randn(3), backend="eager")


def test_order_and_declining() -> None:
    def program(x: Any, y: Any) -> Any:
        return x + y, torch.cos(y), torch.sin(x)

    def make() -> World:
        return World(
            program,
            lambda call: (Scaled(torch.randn(3), 2.0), Outer(torch.randn(3), 5.0)),
        )

    compare(make, backend="eager", fullgraph=True)


def test_nobody_implements_it() -> None:
    def program(y: Any) -> Any:
        try:
            return torch.sin(y)
        except TypeError as error:
            return str(error).partition(";")[0]

    checked(program, lambda: Outer(torch.randn(3), 5.0), backend="eager")


def test_ducks() -> None:
    def program(x: torch.Tensor) -> Any:
        duck = Duck(x)
        return torch.sin(duck), torch.add(duck, 1), F.relu(duck)  # type: ignore[call-overload,arg-type]

    checked(program, lambda: torch.randn(3), backend="eager")


def test_subclasses_of_parameters() -> None:
    def make() -> World:
        layer = nn.Linear(3, 3)
        layer.weight = Weight(torch.randn(3, 3))
        return World(
            lambda x: (layer(x), layer.weight.rows(), isinstance(layer.weight, Weight)),
            lambda call: (torch.randn(2, 3),),
            lambda: layer,
        )

    compare(make, backward=True, fullgraph=True)


def test_another_class_recompiles() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, type(x).__name__

    compiled = flambeau.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(3)
    for argument in (x, x.as_subclass(Plain), x, Scaled(x), x.as_subclass(Plain)):
        got, want = compiled(argument), program(argument)
        assert type(got[0]) is type(want[0]) and got[1] == want[1]
    assert kinds(compiled) == ["capture", "recompile", "recompile"]


class Wrapper(torch.Tensor):
    """Answers operators: no business of a graph."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[arg.inner if isinstance(arg, Wrapper) else arg for arg in args])


def test_subclasses_that_answer_operators_run_eagerly() -> None:
    compiled = checked(lambda x: x + 1, lambda: Wrapper(torch.randn(3)), whole=False)
    assert "break" in kinds(compiled)


def test_attributes_of_plain_tensors() -> None:
    def program(x: Any) -> Any:
        x.first = 3
        y = x * 2
        y.second = "q"
        y.third = x + 1
        y.gone = 1
        del y.gone
        return x.first, y.second, y.third, hasattr(y, "gone"), y

    def make() -> World:
        kept: list[Any] = []

        def arguments(call: int) -> tuple[Any, ...]:
            kept.append(torch.randn(3))
            return (kept[-1],)

        return World(program, arguments, lambda: [x.first for x in kept])

    compiled = compare(make, fullgraph=True)
    out = compiled(torch.randn(3))[-1]
    assert out.second == "q" and out.third.shape == (3,) and not hasattr(out, "gone")
