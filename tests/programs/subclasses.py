"""Programs of wrapper subclasses, each one graph: tests/cpu/test_wrapper_subclasses.py compares
them with eager.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Program:
    """`function(*arguments(call))`; `captures` are the events of its calls."""

    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    trains: bool = False
    calls: int = 2
    captures: tuple[str, ...] = ("capture",)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


PROGRAMS: dict[str, Program] = {}


def two(*shape: int, grad: bool = False) -> Any:
    """A TwoTensor of random numbers."""
    return TwoTensor(torch.randn(shape), torch.randn(shape)).requires_grad_(grad)


def two_twos(*shape: int, grad: bool = False) -> Any:
    """A TwoTensor of TwoTensors."""
    return TwoTensor(two(*shape), two(*shape)).requires_grad_(grad)


def weight(*shape: int) -> torch.Tensor:
    """A plain parameter."""
    return torch.randn(shape, requires_grad=True)


def _add(
    name: str,
    function: Callable[..., Any],
    arguments: Callable[[int], tuple[Any, ...]],
    **options: Any,
) -> None:
    PROGRAMS[name] = Program(function, arguments, **options)


# ---------------------------------------------------------------- a user's own classes


class Scaled(torch.Tensor):
    """Stands for `inner * scale`; the scale is no tensor."""

    inner: torch.Tensor
    scale: float

    @staticmethod
    def __new__(cls, inner: torch.Tensor, scale: float) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: torch.Tensor, scale: float) -> None:
        self.inner = inner
        self.scale = scale

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Scaled({self.inner!r}, {self.scale})"

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["inner"], {"scale": self.scale}

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: dict[str, Any], size: Any, stride: Any
    ) -> Scaled:
        return Scaled(inner["inner"], context["scale"])

    def doubled_scale(self) -> float:
        return self.scale * 2

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten.view.default, aten.t.default):
            return cls(func(args[0].inner, *args[1:], **kwargs), args[0].scale)
        if func is aten.mul.Tensor and not isinstance(args[1], torch.Tensor):
            return cls(args[0].inner, args[0].scale * args[1])
        plain = lambda x: x.inner * x.scale if isinstance(x, cls) else x  # noqa: E731
        return func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs))


class Counted(torch.Tensor):
    """Computes as its inner tensor does, and counts the torch functions that it is asked for."""

    inner: torch.Tensor
    asked: int = 0

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Counted({self.inner!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any
    ) -> Counted:
        return Counted(inner["inner"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.silu:
            return F.relu(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counted.asked += 1
        plain = lambda x: x.inner if isinstance(x, cls) else x  # noqa: E731
        out = func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, cls, out)


# ---------------------------------------------------------------- TwoTensor


_add("elementwise", lambda x: torch.relu(x) * 2 + 1, lambda call: (two(4, 8),))
_add(
    "product_with_plain",
    lambda x, w: (x @ w, x.sum()),
    lambda call: (two(4, 8), torch.randn(8, 3)),
)
_add(
    "plain_parameter",
    lambda x, w: torch.relu(x @ w).view(-1) * 2,
    lambda call: (two(4, 8, grad=True), weight(8, 3)),
    trains=True,
)
_add(
    "parameter",
    lambda x, w, b: F.linear(x, w, b).relu().sum(0),
    lambda call: (torch.randn(4, 8), two(3, 8, grad=True), two(3, grad=True)),
    trains=True,
)
_add("written_in_place", lambda x: x.add_(1).mul_(2) * 3, lambda call: (two(4, 8),))
_add("written_by_view", lambda x: (x[1:].add_(1), x.t())[1], lambda call: (two(4, 8),))
_add(
    "written_without_grad",
    lambda x: torch.no_grad()(lambda: x.add_(1))() * 2,
    lambda call: (two(4, 8, grad=True),),
    trains=True,
)
_add(
    "views",
    lambda x: (x.view(-1), x.t(), x[0], x.detach()),
    lambda call: (two(4, 8, grad=True),),
    trains=True,
)
_add("views_of_results", lambda x: torch.split(x * 2, 2), lambda call: (two(4, 8),))
_add("inner_tensors", lambda x: (x.a + 1, x.b * 2, (x * 2).a), lambda call: (two(4, 8),))
_add("method", lambda x: x.get_elem_a() + x, lambda call: (two(4, 8),))
_add("made_inside", lambda a, b: TwoTensor(a, b) * 2, lambda call: (torch.randn(3), torch.randn(3)))
_add(
    "two_of_two",
    lambda x: torch.sin(x) * x.shape[0],
    lambda call: (two_twos(4, 8, grad=True),),
    trains=True,
)
_add(
    "sizes_that_change",
    lambda x: (torch.sin(x).view(-1) * x.shape[0], x.exp()),
    lambda call: (two(4 + call, 8, grad=True),),
    trains=True,
    calls=5,
    captures=("capture", "recompile"),
)
_add(
    "dynamic",
    lambda x: torch.sin(x).reshape(-1) * x.shape[0],
    lambda call: (two(4 + call, 8),),
    calls=5,
    options={"dynamic": True},
)
_add(
    "attention",
    lambda q: F.scaled_dot_product_attention(q, q, q),
    lambda call: (two(1, 2, 8, 16, grad=True),),
    trains=True,
)
_add(
    "layer_norm",
    lambda x, w: F.layer_norm(x, (8,), w),
    lambda call: (two(4, 8, grad=True), weight(8)),
    trains=True,
)
_add("dropout", lambda x: F.dropout(x, 0.5), lambda call: (two(4, 8),))

# ---------------------------------------------------------------- classes with contexts


_add(
    "context",
    lambda x: ((x * 3).view(-1), x + 1, x.doubled_scale(), x.scale),
    lambda call: (Scaled(torch.randn(2, 3), 2.0),),
)
_add(
    "context_that_changes",
    lambda x: (x * 3, x + 1),
    lambda call: (Scaled(torch.randn(2, 3), 2.0 + call % 2),),
    calls=4,
    captures=("capture", "recompile"),
)
_add("torch_function", lambda x: F.silu(x) + F.gelu(x), lambda call: (Counted(torch.randn(4)),))

# ---------------------------------------------------------------- jagged tensors


def jagged(*lengths: int, grad: bool = False) -> Any:
    """A nested tensor of random rows of 8 numbers."""
    rows = [torch.randn(length, 8) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged).requires_grad_(grad)


def _ragged(call: int) -> tuple[int, ...]:
    return 3 + call, 2, 5 + 2 * call


_add(
    "jagged_elementwise",
    lambda x: torch.sin(x) * 2 + x,
    lambda call: (jagged(*_ragged(call)),),
    calls=4,
)
_add(
    "jagged_softmax",
    lambda x: (torch.softmax(x, dim=-1), x.values() * 2),
    lambda call: (jagged(*_ragged(call)),),
    calls=4,
)
_add(
    "jagged_layer_norm",
    lambda x: F.layer_norm(x, (8,)),
    lambda call: (jagged(*_ragged(call)),),
    calls=4,
)
_add(
    "jagged_linear",
    lambda x, w: F.linear(x, w).relu(),
    lambda call: (jagged(*_ragged(call)), torch.randn(4, 8)),
    calls=4,
)
_add(
    "jagged_training",
    lambda x, w: F.linear(x, w).relu(),
    lambda call: (jagged(*_ragged(call), grad=True), weight(4, 8)),
    calls=4,
    trains=True,
)
