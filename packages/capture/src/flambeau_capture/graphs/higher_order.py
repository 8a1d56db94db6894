"""Nodes that hold graphs: what a captured graph calls where the program passed functions to torch.

    MyFunction, a torch.autograd.Function, as two captured graphs   ->   MyFunction(x, w)
    x, w -> torch.vmap(lambda row: torch.sin(row @ w))(x)                    ->      vmap(x, w)

Each is a callable on flat tensors that does what eager torch does, with captured graphs in the
place of the program's functions: so a graph that holds one runs anywhere, and a tracer of ATen
calls (autograd's, torch's own) sees the calls inside. What the program's functions read besides
their arguments are arguments here too, after those, and called "lifted".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from flambeau_capture.graphs.autograd_calls import jacobian, pull_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    Runnable: TypeAlias = "fx.GraphModule | CompiledGraph"


class HigherOrder:
    """Base of the callables.  `name` is what the graph's text calls them."""

    name: str

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on flat tensors."""
        raise NotImplementedError

    @property
    def __name__(self) -> str:
        return self.name

    def graphs(self) -> Mapping[str, Runnable]:
        """The graphs inside, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        parts = [
            f"{name}: {str(graph.graph).strip()}".replace("\n", "\n  ")
            for name, graph in self.graphs().items()
        ]
        return f"{type(self).__name__} {self.name} {{\n  " + "\n  ".join(parts) + "\n}"


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """What runs in the place of a captured graph."""

    graph: fx.Graph
    forward: Callable[..., tuple[Any, ...]]


# ---------------------------------------------------------------- torch.autograd.Function


@dataclass(frozen=True, eq=False)
class Kept:
    """A tensor of the forward that the backward reads: argument, output or further result `index`
    of the forward graph.

    `checked`: it goes through save_for_backward, which notices a later write; else it hangs on ctx.
    """

    source: Literal["argument", "output", "extra"]
    index: int
    checked: bool


@dataclass(frozen=True, eq=False)
class Backward:
    """The backward for one pattern of defined gradients.

    `graph` takes the defined gradients, the kept tensors that `kept` lists, then `lifted`
    (positions among the call's lifted arguments). `results[i]` is the result of `graph` that
    argument i's gradient is, or None.
    """

    graph: fx.GraphModule
    kept: tuple[int, ...]
    lifted: tuple[int, ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, eq=False, repr=False)
class CustomFunction(HigherOrder):
    """`MyFunction.apply(...)`: call it with the tensor arguments, then the lifted ones; it returns
    a tuple of the tensor results.

    `forward` takes the `arguments` tensors and the first `forward_lifted` lifted ones, and returns
    `outputs` results, then what the backward needs besides. `backwards` is keyed by which outputs'
    gradients are defined; empty if nothing is differentiated.
    """

    name: str
    forward: fx.GraphModule
    arguments: int
    forward_lifted: int
    outputs: int
    backwards: Mapping[tuple[bool, ...], Backward]
    kept: tuple[Kept, ...] = ()
    dirty: tuple[int, ...] = ()
    non_differentiable: tuple[int, ...] = ()
    materialize_grads: bool = True
    once_differentiable: bool = False
    generate_vmap_rule: bool = False

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        tensors, lifted = args[: self.arguments], args[self.arguments :]
        if torch._C._are_functorch_transforms_active():
            return self._transformable.apply(self, lifted, *tensors)  # type: ignore[no-untyped-call, no-any-return]
        # The C entry: Function.apply itself looks for function transforms first.
        apply = super(torch.autograd.Function, self._plain).apply  # type: ignore[misc]
        return apply(self, lifted, *tensors)  # type: ignore[no-any-return]

    def graphs(self) -> Mapping[str, Runnable]:
        found: dict[str, Runnable] = {"forward": self.forward}
        for defined, backward in self.backwards.items():
            missing = [str(at) for at, is_there in enumerate(defined) if not is_there]
            suffix = f" without gradient of {', '.join(missing)}" if missing else ""
            found[f"backward{suffix}"] = backward.graph
        return found

    @functools.cached_property
    def _plain(self) -> type[torch.autograd.Function]:
        return self._function(_Plain)

    @functools.cached_property
    def _transformable(self) -> type[torch.autograd.Function]:
        return self._function(_Transformable)

    def _function(self, base: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        """`base` under the name that the program gave its Function."""
        members: dict[str, Any] = {"generate_vmap_rule": self.generate_vmap_rule}
        if self.once_differentiable:
            members["backward"] = staticmethod(
                torch.autograd.function.once_differentiable(base.backward)
            )
        return type(self.name, (base,), members)

    def _set_up(self, ctx: Any, lifted: Any, tensors: Any, outputs: Any, extras: Any) -> None:
        sources = {"argument": tensors, "output": outputs, "extra": extras}
        kept = [sources[item.source][item.index] for item in self.kept]
        ctx.call, ctx.lifted = self, lifted
        ctx.held = [
            None if item.checked else value for item, value in zip(self.kept, kept, strict=True)
        ]
        ctx.save_for_backward(
            *[value for item, value in zip(self.kept, kept, strict=True) if item.checked]
        )
        if self.dirty:
            ctx.mark_dirty(*[tensors[at] for at in self.dirty])
        if self.non_differentiable:
            ctx.mark_non_differentiable(*[outputs[at] for at in self.non_differentiable])
        ctx.set_materialize_grads(self.materialize_grads)

    def _differentiate(self, ctx: Any, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        defined = tuple(gradient is not None for gradient in gradients)
        backward = self.backwards.get(defined)
        if backward is None:
            raise RuntimeError(
                f"the backward of {self.name} could not be captured for gradients defined "
                f"as {defined}"
            )
        saved = iter(ctx.saved_tensors)
        kept = [
            next(saved) if item.checked else held
            for item, held in zip(self.kept, ctx.held, strict=True)
        ]
        results = backward.graph.forward(
            *[gradient for gradient in gradients if gradient is not None],
            *[kept[at] for at in backward.kept],
            *[ctx.lifted[at] for at in backward.lifted],
        )
        return None, None, *(None if at is None else results[at] for at in backward.results)


class _Plain(torch.autograd.Function):
    """Outside transforms: the forward sees ctx, and may keep tensors that it does not return."""

    @staticmethod
    def forward(ctx: Any, call: CustomFunction, lifted: Any, *tensors: Any) -> tuple[Any, ...]:
        results = call.forward.forward(*tensors, *lifted[: call.forward_lifted])
        outputs = results[: call.outputs]
        call._set_up(ctx, lifted, tensors, outputs, results[call.outputs :])
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return ctx.call._differentiate(ctx, gradients)  # type: ignore[no-any-return]


class _Transformable(torch.autograd.Function):
    """Inside function transforms, which ask for a separate setup_context."""

    @staticmethod
    def forward(call: CustomFunction, lifted: Any, *tensors: Any) -> tuple[Any, ...]:
        return call.forward.forward(*tensors, *lifted[: call.forward_lifted])  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        call, lifted, *tensors = inputs
        call._set_up(ctx, lifted, tensors, output, ())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return ctx.call._differentiate(ctx, gradients)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- torch.func


class _Transform(HigherOrder):
    """Base of function transforms: called with their tensors, then the graph's lifted arguments."""

    graph: fx.GraphModule

    def graphs(self) -> Mapping[str, Runnable]:
        return {"of": self.graph}

    def _closed(self, lifted: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        """The graph with its lifted arguments given."""
        run = self.graph.forward
        return lambda *tensors: run(*tensors, *lifted)


def _with_aux(
    closed: Callable[..., tuple[Any, ...]], results: int
) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The function with its differentiated results and its other results as two tuples."""

    def function(*tensors: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        flat = closed(*tensors)
        return tuple(flat[:results]), tuple(flat[results:])

    return function


@dataclass(frozen=True, eq=False, repr=False)
class VectorizedMap(_Transform):
    """torch.vmap: one tensor for each of `in_dims`, one result for each of `out_dims`."""

    name: str
    graph: fx.GraphModule
    in_dims: tuple[int, ...]
    out_dims: tuple[int | None, ...]
    randomness: str
    chunk_size: int | None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        count = len(self.in_dims)
        mapped = torch.vmap(
            self._closed(args[count:]),
            self.in_dims,
            self.out_dims,  # type: ignore[arg-type]
            randomness=self.randomness,
            chunk_size=self.chunk_size,
        )
        return mapped(*args[:count])


@dataclass(frozen=True, eq=False, repr=False)
class Gradient(_Transform):
    """torch.func.grad_and_value of a graph with a value and auxiliary results: takes `tensors`
    arguments; returns gradients by those in `wanted`, the value, the rest.
    """

    name: str
    graph: fx.GraphModule
    wanted: tuple[int, ...]
    tensors: int

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        closed = self._closed(args[self.tensors :])
        results, gradients = pull_back(closed, args[: self.tensors], self.wanted, None)
        return *gradients, *results


@dataclass(frozen=True, eq=False, repr=False)
class Jacobian(_Transform):
    """torch.func.jacrev or jacfwd: takes `tensors` arguments; returns the derivatives of each of
    `results` results by those in `wanted`, then the auxiliary tensors.
    """

    name: str
    graph: fx.GraphModule
    wanted: tuple[int, ...]
    tensors: int
    results: int
    options: Mapping[str, Any]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        closed = self._closed(args[self.tensors :])
        if self.name == "jacrev":
            chunk = self.options["chunk_size"]
            results, derivatives = jacobian(
                closed, args[: self.tensors], self.wanted, self.results, chunk
            )
            return *derivatives, *results[self.results :]
        transform = getattr(torch.func, self.name)(
            _with_aux(closed, self.results), self.wanted, has_aux=True, **self.options
        )
        jacobians, aux = transform(*args[: self.tensors])
        return *(item for by_argument in jacobians for item in by_argument), *aux


@dataclass(frozen=True, eq=False, repr=False)
class ReverseProduct(_Transform):
    """torch.func.vjp: takes `primals` tensors and cotangents of the first `cotangents` results;
    returns a gradient for each primal, or without cotangents the results.
    """

    name: str
    graph: fx.GraphModule
    primals: int
    cotangents: int

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        last = self.primals + self.cotangents
        closed = self._closed(args[last:])
        seeds = args[self.primals : last]
        results, gradients = pull_back(closed, args[: self.primals], range(self.primals), seeds)
        return gradients if self.cotangents else results


@dataclass(frozen=True, eq=False, repr=False)
class TangentProduct(_Transform):
    """torch.func.jvp: takes `primals` tensors and as many tangents, and returns the graph's first
    `results` results, their tangents, then its auxiliary tensors.
    """

    name: str
    graph: fx.GraphModule
    primals: int
    results: int

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        count = self.primals
        function = _with_aux(self._closed(args[2 * count :]), self.results)
        value, tangents, aux = torch.func.jvp(  # type: ignore[misc]
            function, args[:count], args[count : 2 * count], has_aux=True
        )
        return *value, *tangents, *aux
