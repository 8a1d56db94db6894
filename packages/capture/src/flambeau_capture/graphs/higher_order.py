"""Nodes that hold graphs: what a captured graph calls where the program passed functions to torch.

    x, w -> torch.vmap(lambda row: torch.sin(row @ w))(x)       ->      vmap(x, w)

Each is a callable on flat tensors that does what eager torch does, with captured graphs in the
place of the program's functions: so a graph that holds one runs anywhere, and a tracer of ATen
calls (autograd's, torch's own) sees the calls inside. What the program's functions read besides
their arguments are arguments here too, after those, and called "lifted".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

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
