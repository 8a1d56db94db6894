"""A call of a plain graph with wrapper subclasses: arguments taken apart, results made.

    x = TwoTensor(a, b)      a, b = take_apart(x);  c, d = compiled(a, b);  return TwoTensor(c, d)

Both ends are differentiable (`_TakenApart`, `_PutTogether`) where the arguments require grad, so
`x.grad` is a wrapper, and a backward takes one. `subclasses.py` says how the plain graph is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from flambeau_autograd.reasons import SubclassGraph
from flambeau_autograd.wrapper_tangents import Rerun
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import from_symint
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.symbols import SymbolRead, symbol_reads
from flambeau_prims.wrapper_subclasses import (
    AnySpec,
    SubclassSpec,
    is_wrapper_subclass,
    leaves_of,
    map_sizes,
    parts_of,
    rebuilt,
    same_context,
    spec_of_wrapper,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

    from flambeau_autograd.graph_call import Compiled
    from flambeau_autograd.wrapper_tangents import Program
    from flambeau_prims.sizes import Size


@dataclass(eq=False)
class Argument:
    """An argument: as the caller gives it, and which gradient it gets.

    `spec` is None for what is no tensor. `gradient` says how its gradient is built if not as it is
    itself: then it has carriers. `found` is its gradient in the trace.
    """

    position: int
    spec: AnySpec | None
    requires_grad: bool
    gradient: AnySpec | None = None
    found: AnySpec | None = None

    @property
    def leaves(self) -> list[Spec]:
        """The Specs of its plain tensors."""
        return _leaves(self.spec)

    @property
    def carriers(self) -> list[Spec]:
        """The Specs of its carriers: one element, expanded."""
        return [
            Spec.of(spec.shape, stride=(0,) * spec.ndim, dtype=spec.dtype, device=spec.device)
            for spec in _leaves(self.gradient)
        ]

    @property
    def is_plain(self) -> bool:
        """Whether it is passed to the plain graph as it is."""
        return self.gradient is None and not isinstance(self.spec, SubclassSpec)


def _leaves(spec: AnySpec | None) -> list[Spec]:
    if isinstance(spec, SubclassSpec):
        return spec.leaves
    return [] if spec is None else [spec]


@dataclass(frozen=True)
class Same:
    """A result that the plain graph returns at `position`."""

    position: int


@dataclass(frozen=True)
class Given:
    """The caller's argument number `position`."""

    position: int


@dataclass(frozen=True)
class ViewOf:
    """A view of the caller's argument number `position`, taken as `fake` was in the trace."""

    position: int
    fake: torch.Tensor


@dataclass(frozen=True)
class Made:
    """A wrapper of the plain graph's results from `position` on. `tangent` is the spec of what
    arrives for it in a backward; None if autograd does not know it. `connected`: the caller's
    arguments that it is connected to.
    """

    spec: SubclassSpec
    position: int
    tangent: SubclassSpec | None
    connected: tuple[int, ...]


Planned: TypeAlias = "Same | Given | ViewOf | Made"


@dataclass(eq=False)
class Border:
    """How the arguments and results of a graph correspond to those of its plain graph.

    `reads`: where the values of symbols stand among the leaves of all arguments. `plan` is for the
    results; `versions` says which wrappers are written to, and how far that moves their version
    counters. `grad`: the grad mode of calls.
    """

    arguments: list[Argument]
    reads: dict[str, SymbolRead]
    grad: bool
    plan: list[Planned] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Border:
        """The border of a graph, for arguments like these."""
        arguments: list[Argument] = []
        given: list[Any] = []
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        for position, (node, x) in enumerate(zip(nodes, example_inputs, strict=True)):
            spec = node.meta.get("spec")
            if not isinstance(x, torch.Tensor):
                arguments.append(Argument(position, None, False))
                given.append(spec if isinstance(spec, (Expr, FloatExpr)) else None)
                continue
            if is_wrapper_subclass(type(x)):
                spec = spec if isinstance(spec, SubclassSpec) else spec_of_wrapper(x)
            elif not isinstance(spec, Spec):
                spec = spec_of(x)
            arguments.append(Argument(position, spec, x.requires_grad, _first_guess(spec, x)))
            given += _leaves(spec)
        return cls(arguments, symbol_reads(given), torch.is_grad_enabled())

    def aligned(self, positions: Sequence[int]) -> tuple[int, ...]:
        """The caller's arguments that must be aligned, by positions of plain ones."""
        place: list[int] = []
        for argument in self.arguments:
            count = max(1, len(argument.leaves) + len(argument.carriers))
            place += [argument.position if argument.is_plain else -1] * count
        found = tuple(place[position] for position in positions)
        if -1 in found:
            raise SubclassGraph("random numbers are drawn for the memory of a wrapper")
        return found

    def sizes_of(self, args: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols in a call."""
        if not self.reads:
            return _NO_SIZES
        given: list[Any] = []
        for argument, value in zip(self.arguments, args, strict=True):
            if isinstance(argument.spec, SubclassSpec):
                given += leaves_of(value)
            else:
                given.append(value)
        return {name: read.value(given) for name, read in self.reads.items()}


def _first_guess(spec: AnySpec, x: torch.Tensor) -> AnySpec | None:
    """How the gradient of an argument is built: a plain one if its leaves are integers."""
    if not x.requires_grad or any(map(is_differentiable, _leaves(spec))):
        return None
    assert isinstance(spec, SubclassSpec)
    return Spec.of(spec.shape, dtype=spec.dtype, device=spec.device)


_NO_SIZES: dict[str, int] = {}


def number_from(sizes: dict[str, int]) -> Callable[[Expr], int]:
    """The value of a symbolic size."""
    return lambda size: int(size.env.evaluate(size, sizes))


def is_differentiable(tensor: torch.Tensor | Spec) -> bool:
    """Whether a tensor of this dtype can have a gradient."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def gradient_of_leaves(
    spec: AnySpec,
    leaves: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    number: Callable[[Expr], Any] | None = None,
) -> torch.Tensor | None:
    """A gradient of this spec, by those of the leaves that have one; the others are `leaves`."""
    if all(gradient is None for gradient in gradients):
        return None
    given = iter(gradients)
    parts: list[torch.Tensor] = []
    for leaf in leaves:
        part = next(given) if is_differentiable(leaf) else leaf
        parts.append(torch.zeros_like(leaf) if part is None else part)
    if not isinstance(spec, SubclassSpec):
        return parts[0]
    if number is None:
        return rebuilt(spec, iter(parts))
    return rebuilt(spec, iter(parts), number)


# ---------------------------------------------------------------- arguments


def take_apart(border: Border, args: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """The arguments of the plain graph, and the values of the symbols."""
    sizes = border.sizes_of(args)
    flat: list[Any] = []
    for argument, value in zip(border.arguments, args, strict=True):
        if argument.is_plain:
            flat.append(value)
            continue
        leaves = list(leaves_of(value))
        differentiable = argument.requires_grad and border.grad
        if argument.gradient is not None:
            flat += [leaf.detach() for leaf in leaves]
            flat += _TakenApart.apply(argument, sizes, value)
        elif differentiable and any(map(is_differentiable, leaves)):
            parts = iter(_TakenApart.apply(argument, sizes, value))
            flat += [next(parts) if is_differentiable(leaf) else leaf for leaf in leaves]
        else:
            flat += leaves
    return flat, sizes


class _TakenApart(torch.autograd.Function):
    """An argument to its leaves that have gradients, or to its carriers."""

    @staticmethod
    def forward(
        ctx: Any, argument: Argument, sizes: dict[str, int], value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.argument, ctx.number = argument, number_from(sizes)
        if argument.gradient is None:
            ctx.leaves = list(leaves_of(value))
            return tuple(leaf.detach() for leaf in ctx.leaves if is_differentiable(leaf))
        ctx.leaves = [_carrier(spec, ctx.number) for spec in argument.carriers]
        return tuple(ctx.leaves)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        spec = ctx.argument.found
        if spec is None:  # no gradient has come to it in the trace
            return None, None, None
        wanted = any(gradient is not None and gradient.requires_grad for gradient in gradients)
        if not wanted or not torch.is_grad_enabled():
            return None, None, gradient_of_leaves(spec, ctx.leaves, gradients, ctx.number)
        return None, None, _Gradient.apply(spec, ctx.leaves, ctx.number, *gradients)


class _Gradient(torch.autograd.Function):
    """`gradient_of_leaves`, connected to the gradients of the leaves."""

    @staticmethod
    def forward(
        ctx: Any,
        spec: AnySpec,
        leaves: Sequence[torch.Tensor],
        number: Callable[[Expr], int],
        *gradients: torch.Tensor | None,
    ) -> torch.Tensor | None:
        ctx.set_materialize_grads(False)
        ctx.expected = _with_numbers(spec, number) if isinstance(spec, SubclassSpec) else None
        parts = [None if each is None else each.detach() for each in gradients]
        return gradient_of_leaves(spec, leaves, parts, number)

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        count = len(ctx.needs_input_grad) - 3
        if tangent is None or ctx.expected is None:
            return (None, None, None, tangent, *(None,) * (count - 1))
        converted = _as_expected(tangent, ctx.expected)
        if converted is None:
            raise RuntimeError(f"a gradient like {ctx.expected!r} has one of another class")
        parts = [each for each in _leaves_like(converted, ctx.expected) if each is not None]
        return (None, None, None, *parts)


def _carrier(spec: Spec, number: Callable[[Expr], int]) -> torch.Tensor:
    """A tensor that takes no memory."""
    shape = [concrete(size, number) for size in spec.shape]
    return torch.empty((), dtype=spec.dtype, device=spec.device).expand(shape)


# ---------------------------------------------------------------- results


def run_plain(compiled: Compiled, border: Border, program: Program) -> Compiled:
    """The callable on wrappers, of a callable on plain tensors."""
    again = any(isinstance(each, Made) and each.tangent is not None for each in border.plan)

    def call(*args: Any) -> tuple[Any, ...]:
        rerun = Rerun(program, args) if again and torch.is_grad_enabled() else None
        flat, sizes = take_apart(border, args)
        results = compiled(*flat)
        for position, count in border.versions:
            for _ in range(count):
                torch.autograd.graph.increment_version(args[position])
        number = number_from(sizes)
        made: dict[int, Any] = {}
        return tuple(
            [
                _result(planned, args, results, number, made, at, rerun)
                for at, planned in enumerate(border.plan)
            ]
        )

    return call


def _result(
    planned: Planned,
    args: Sequence[Any],
    results: Sequence[Any],
    number: Callable[[Expr], int],
    made: dict[int, Any],
    at: int,
    rerun: Rerun | None,
) -> Any:
    if isinstance(planned, Same):
        return results[planned.position]
    if isinstance(planned, Given):
        return args[planned.position]
    if isinstance(planned, ViewOf):
        return _viewed(planned.fake, args[planned.position], number)
    known = made.get(id(planned))
    if known is None:
        spec = planned.spec
        leaves = results[planned.position : planned.position + len(spec.leaves)]
        if planned.tangent is not None and rerun is not None:
            inputs = [args[position] for position in planned.connected]
            known = _PutTogether.apply(planned, number, (at, rerun), *leaves, *inputs)
        else:
            known = rebuilt(spec, iter(leaves), number)
        made[id(planned)] = known
    return known


def _viewed(fake: torch.Tensor, base: torch.Tensor, number: Callable[[Expr], int]) -> torch.Tensor:
    """The view of `base` that `fake` is of its base in the trace."""
    traced = fake._base
    assert traced is not None

    def size_of(size: Any) -> Any:
        if not isinstance(size, torch.SymInt) or not size.node.is_nested_int():
            return concrete(from_symint(size), number)
        # A ragged size: the one that the real base has in the same place.
        ragged = size.node.nested_int()
        sizes: list[Any] = list(traced.shape)
        for before, now in zip(sizes, base.shape, strict=True):
            known = isinstance(before, torch.SymInt) and before.node.is_nested_int()
            if known and before.node.nested_int() == ragged:
                return now * size.node.nested_int_coeff()
        raise AssertionError(f"{size} is no size of the viewed tensor")

    view: torch.Tensor = fake._view_func_unsafe(base, size_of)  # type: ignore[attr-defined]
    return view


def concrete(size: Size, number: Callable[[Expr], int]) -> int:
    """The value of a size, which may be symbolic."""
    return number(size) if isinstance(size, Expr) else size


class _PutTogether(torch.autograd.Function):
    """Leaves to the wrapper that consists of them. The arguments that it is connected to follow the
    leaves: where a tangent is not as expected, they get gradients from here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        planned: Made,
        number: Callable[[Expr], int],
        source: tuple[int, Rerun],
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        assert planned.tangent is not None
        ctx.expected, ctx.source = _with_numbers(planned.tangent, number), source
        ctx.connected = planned.connected
        leaves = tensors[: len(planned.spec.leaves)]
        parts = [leaf.detach() if leaf.requires_grad else leaf for leaf in leaves]
        made = rebuilt(planned.spec, iter(parts), number)
        return made.detach() if made.requires_grad else made

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor | None) -> Any:
        expected, (output, rerun) = ctx.expected, ctx.source
        leaves: list[Any] = [None for _ in expected.leaves]
        inputs: Sequence[Any] = [None for _ in ctx.connected]
        if tangent is not None:
            # What a compiled backward gives has no second derivative: autograd knows the wrapper,
            # not what it is made of.
            again = torch.is_grad_enabled() and not rerun.refusal()
            converted = None if again else _as_expected(tangent, expected)
            if converted is not None:
                leaves = list(_leaves_like(converted, expected))
            else:
                inputs = rerun.gradients(output, ctx.connected, tangent, expected)
        return (None, None, None, *leaves, *inputs)


def _with_numbers(spec: SubclassSpec, number: Callable[[Expr], int]) -> SubclassSpec:
    """A spec whose contexts say the sizes of a call."""
    if not spec.sizes:
        return spec
    inner = [
        _with_numbers(part, number) if isinstance(part, SubclassSpec) else part
        for part in spec.inner
    ]
    return replace(spec, context=map_sizes(spec.context, number), inner=tuple(inner))


def _leaves_like(tensor: torch.Tensor, spec: SubclassSpec) -> Iterator[torch.Tensor | None]:
    """The leaves of a tensor in the order of a spec; None where it has none, or no gradient."""
    names, _, inner = parts_of(tensor)
    given = dict(zip(names, inner, strict=True))
    for name, part in zip(spec.names, spec.inner, strict=True):
        leaf = given.get(name)
        if isinstance(part, SubclassSpec):
            yield from [None] * len(part.leaves) if leaf is None else _leaves_like(leaf, part)
        else:
            yield leaf if leaf is not None and is_differentiable(leaf) else None


def _as_expected(tangent: torch.Tensor, expected: SubclassSpec) -> torch.Tensor | None:
    """The gradient of a result, as the graph was compiled for; the class may convert it. None if
    that cannot be.
    """
    if _fits(tangent, expected):
        return tangent
    # `out.sum()` has an expanded gradient, and a context may say so.
    given = tangent.detach().contiguous()
    if _fits(given, expected):
        return given
    convert = getattr(given, "__coerce_same_metadata_as_tangent__", None)
    if convert is not None:
        other = None if type(given) is expected.cls else expected.cls
        converted = convert(expected.context.given, other)
        if converted is not None and _fits(converted, expected):
            return converted  # type: ignore[no-any-return]
    return None


def _fits(tangent: torch.Tensor, expected: SubclassSpec) -> bool:
    if type(tangent) is not expected.cls:
        return False
    names, context, inner = parts_of(tangent.detach())
    parts = dict(zip(expected.names, expected.inner, strict=True))
    return same_context(context, expected.context) and all(
        name in parts and _leaf_fits(leaf, parts[name])
        for name, leaf in zip(names, inner, strict=True)
    )


def _leaf_fits(leaf: torch.Tensor, part: AnySpec) -> bool:
    if isinstance(part, SubclassSpec):
        return _fits(leaf, part)
    return not is_wrapper_subclass(type(leaf))
