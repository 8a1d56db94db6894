"""A backward whose tangents are batches (`is_grads_batched=True`, `torch.vmap` around
`torch.autograd.grad`, vectorized Jacobians): the graph of the backward, mapped over the batch.

    backward(w, y, t) -> (g,)      t is a batch of n tangents
    mapped(w, y, t_n) -> (g_n,)    compiled as a separate graph, for tensors of these sizes

The tangents of a batch look like single ones and have no memory, so kernels cannot read them. Here
the batch becomes a dim in front. A graph that cannot be mapped runs once for each tangent, and says
why (`explain(...).graphs[i].separate_tangents`).
"""

from __future__ import annotations

import operator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau_autograd.operators import happens_once
from flambeau_autograd.tangent_kinds import has_batches
from flambeau_prims import primitives as prims
from flambeau_prims.evaluate import run_graph
from flambeau_prims.operator_facts import READS_MEMORY
from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from flambeau_autograd.graph_call import Compiled
    from flambeau_prims.graph import Graph

_functorch = torch._C._functorch

LIMIT = 16
"""How many forms (sizes, sets of undefined tangents) are compiled; the rest run one by one."""


class BatchedBackward:
    """A backward graph mapped over batches, compiled for each form of its arguments."""

    def __init__(
        self, graph: Graph, compile_graph: Callable[..., Compiled], separate: list[str]
    ) -> None:
        self._graph = graph
        self._compile = compile_graph
        self._mapped: dict[Any, Compiled | None] = {}
        self._separate = separate
        """Why batches ran one tangent after the other: more is added."""
        self._unmapped = sorted(
            {
                str(node.op)
                for node in graph.nodes
                if node.op is prims.as_strided or node.op in READS_MEMORY or happens_once(node)
            }
        )
        """Operators that no batch can be given to."""

    def __call__(
        self,
        arguments: Sequence[Any],
        fix: Callable[[Sequence[Any]], Sequence[Any]],
        one: Callable[..., Sequence[Any]],
    ) -> Sequence[Any]:
        """The gradients, as batches; `fix` brings arguments without batches into the layout that
        `one` takes, which computes the gradients of such arguments.
        """
        if not has_batches(x for x in arguments if isinstance(x, torch.Tensor)):
            return one(*fix(arguments))
        layer = _Layer.innermost()
        taken = [layer.without(x) for x in arguments]
        size = next(x.shape[0] for x, batched in taken if batched)
        batched = [flag for _, flag in taken]
        given = [x for x, _ in taken]
        with layer.below():
            inner = has_batches(x for x in given if isinstance(x, torch.Tensor))
            mapped = None if inner else self._of(given, batched)
            columns: Sequence[Any]
            if mapped is None:
                each = partial(self, fix=fix, one=one)
                columns = self._one_by_one(given, batched, size, each)
            else:
                columns = mapped(*(x for x in given if isinstance(x, torch.Tensor)))
        return [None if column is None else layer.batch(column) for column in columns]

    def _one_by_one(
        self,
        given: Sequence[Any],
        batched: Sequence[bool],
        size: int,
        one: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> list[Any]:
        pairs = list(zip(given, batched, strict=True))
        rows = [one([x[at] if flag else x for x, flag in pairs]) for at in range(size)]
        # The shapes of an empty batch are those of any other.
        rows = rows or [one([x.new_zeros(x.shape[1:]) if flag else x for x, flag in pairs])]
        columns = zip(*rows, strict=True)
        return [None if row[0] is None else torch.stack(row)[:size] for row in columns]

    def _of(self, given: Sequence[Any], batched: Sequence[bool]) -> Compiled | None:
        """The compiled graph for arguments like these; None if there is none."""
        if self._unmapped:
            self._note(f"{', '.join(self._unmapped)} cannot be mapped over a batch")
            return None
        key = tuple(
            (x.shape, x.stride(), flag) if isinstance(x, torch.Tensor) else x
            for x, flag in zip(given, batched, strict=True)
        )
        if key not in self._mapped:
            if len(self._mapped) >= LIMIT:
                self._note(f"batches have more than {LIMIT} forms")
                return None
            self._mapped[key] = self._made(given, batched)
        return self._mapped[key]

    def _made(self, given: Sequence[Any], batched: Sequence[bool]) -> Compiled | None:
        tensors = [x.detach() for x in given if isinstance(x, torch.Tensor)]
        try:
            with torch.no_grad():
                return self._compile(_module(self._graph, given, batched), tensors)
        except (Unsupported, RuntimeError) as error:
            # An operator without a batching rule.
            self._note(str(error).partition("\n")[0])
            return None

    def _note(self, reason: str) -> None:
        if reason not in self._separate:
            self._separate.append(reason)


def _module(graph: Graph, given: Sequence[Any], batched: Sequence[bool]) -> fx.GraphModule:
    """A graph of torch calls that takes the tensors among `given`, batches along dim 0."""
    present = [at for at, out in enumerate(graph.outputs) if out is not None]
    numbers = {at: number for number, at in enumerate(present)}
    tensors = [at for at, x in enumerate(given) if isinstance(x, torch.Tensor)]
    ints = [None if isinstance(x, torch.Tensor) else x for x in given]

    def run(*args: torch.Tensor) -> tuple[Any, ...]:
        own: list[Any] = list(ints)
        for at, x in zip(tensors, args, strict=True):
            own[at] = x
        outputs = run_graph(graph, own, lay_out=False)
        return tuple(outputs[at] for at in present)

    mapped = torch.vmap(run, in_dims=tuple(0 if batched[at] else None for at in tensors))
    result = fx.Graph()
    call = result.call_function(mapped, tuple(result.placeholder(f"x{at}") for at in tensors))
    outputs = [
        result.call_function(operator.getitem, (call, numbers[at])) if at in numbers else None
        for at in range(len(graph.outputs))
    ]
    result.output(tuple(outputs))
    return fx.GraphModule(torch.nn.Module(), result)


@contextmanager
def _without_innermost_transform() -> Iterator[None]:
    layer = _functorch.pop_dynamic_layer_stack()
    try:
        yield
    finally:
        _functorch.push_dynamic_layer_stack(layer)


class _Layer:
    """One level of batches: of `torch.vmap`, or of the engine's own (`is_grads_batched`)."""

    def __init__(self, level: int, *, is_transform: bool) -> None:
        self._level, self._is_transform = level, is_transform

    @classmethod
    def innermost(cls) -> _Layer:
        """The level that calls of this thread run at."""
        interpreter = _functorch.peek_interpreter_stack()
        if interpreter is not None:
            return cls(interpreter.level(), is_transform=True)
        level = torch._C._vmapmode_increment_nesting()
        torch._C._vmapmode_decrement_nesting()
        return cls(level - 1, is_transform=False)

    def below(self) -> AbstractContextManager[Any]:
        """Under which calls run at the level outside of this one."""
        return _without_innermost_transform() if self._is_transform else nullcontext()

    def without(self, x: Any) -> tuple[Any, bool]:
        """An argument with its batch of this level as dim 0, and whether it has one."""
        if not isinstance(x, torch.Tensor):
            return x, False
        if self._is_transform:
            if not _functorch.is_batchedtensor(x) or _functorch.maybe_get_level(x) != self._level:
                return x, False
            return _functorch.get_unwrapped(x).movedim(_functorch.maybe_get_bdim(x), 0), True
        if not _functorch.is_legacy_batchedtensor(x):
            return x, False
        return torch._remove_batch_dim(x, self._level, 1, 0), True

    def batch(self, x: torch.Tensor) -> torch.Tensor:
        """A batch at this level, of a tensor whose dim 0 it is."""
        if self._is_transform:
            return _functorch._add_batch_dim(x, 0, self._level)
        return torch._add_batch_dim(x, 0, self._level)
