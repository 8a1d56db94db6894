"""Nodes of control flow: they choose a graph, or run one again and again.

    torch.cond(p, f, g, (x,))               ->  Conditional cond {true: ..., false: ...}(p, *lifted)
    torch.while_loop(test, body, (i, x))    ->  Loop while_loop {while: ..., do: ...}(i, x, *lifted)
    scan(combine, init, xs), map(f, xs)     ->  Scan scan {combine: ...}(*init, *xs, *lifted)
    checkpoint(norm, x), which writes       ->  Checkpoint checkpoint {of: ...}(x, *lifted)

On real tensors their graphs run as Python runs functions, compiled ones in the place of captured
ones (`with_graphs`). A Scan is unrolled where it is traced: only its length decides. A Conditional
and a Loop need what a tensor holds, so a node that contains one (`depends_on_data`) is not traced.

A Checkpoint is a call of torch's own: the engine runs its graph again, with what that writes.

In a vmap whose rows disagree, both branches run, and a loop goes on until the last row ends; each
row takes its result from the branch or the step that is its.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch
from torch.utils.checkpoint import checkpoint

from flambeau_capture.graphs.higher_order import HigherOrder
from flambeau_prims.fake import FakeTensor
from flambeau_prims.tracer import is_recording
from flambeau_prims.unsupported import DataDependentControlFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flambeau_capture.graphs.higher_order import Runnable


class ControlFlow(HigherOrder):
    """Base of the nodes."""

    def with_graphs(self, kind: type, replacement: Callable[[Any], Any]) -> ControlFlow:
        """The same node with other objects in the place of its graphs, which are of this type."""
        parts = ((item.name, getattr(self, item.name)) for item in fields(self))  # type: ignore[arg-type]
        changed = {name: replacement(part) for name, part in parts if isinstance(part, kind)}
        return replace(self, **changed)  # type: ignore[type-var]


def depends_on_data(target: Any) -> bool:
    """Whether what a node runs depends on what a tensor holds, or on the engine of autograd."""
    if isinstance(target, (Conditional, Loop, Checkpoint)):
        return True
    graphs = target.graphs().values() if isinstance(target, HigherOrder) else ()
    return any(depends_on_data(node.target) for graph in graphs for node in graph.graph.nodes)


# ---------------------------------------------------------------- conditions


def _unwrapped(condition: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The tensor below the levels of function transforms, and whether one of them maps it."""
    is_mapped = False
    while _functorch.is_functorch_wrapped_tensor(condition):
        is_mapped |= _functorch.is_batchedtensor(condition)
        condition = _functorch.get_unwrapped(condition)
    return condition, is_mapped


def _is_chosen(condition: torch.Tensor, what: str) -> bool:
    """The contents of a condition.  Raises DataDependentControlFlow in a trace, which has none."""
    if type(condition) is FakeTensor and condition.contents is None:
        raise DataDependentControlFlow(f"{what} chooses by what a tensor holds")
    return bool(condition)


def _traced_by_torch(tensor: torch.Tensor) -> bool:
    """Whether torch's own tracers are at work, which know these operators by their own names."""
    if type(tensor) is FakeTensor:
        return False
    return type(tensor) is not torch.Tensor or torch._C._len_torch_dispatch_stack() > 0


def _only_shapes(tensor: torch.Tensor) -> bool:
    """Whether shapes are looked for and nothing is recorded: then all graphs are run once."""
    return type(tensor) is FakeTensor and not is_recording()


def _selected(
    condition: torch.Tensor, ones: Iterable[torch.Tensor], others: Iterable[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    scalar = condition.reshape(())
    return tuple(torch.where(scalar, one, other) for one, other in zip(ones, others, strict=True))


# ---------------------------------------------------------------- results


class _Joined(torch.autograd.Function):
    """The identity on results, by one node that gives operands zeros for gradients."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.operands = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple(result.detach() for result in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        zeros = (
            torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.operands
        )
        return None, *gradients, *zeros


def _joined(results: Sequence[torch.Tensor], operands: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The results as torch's operators give them: one function of all operands, used or not.

    So every result of floats requires grad if an operand does, and an operand that the chosen
    branch does not read has zeros for its gradient. Results share no memory with operands.
    """
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    taken = {_unwrapped(tensor)[0].untyped_storage().data_ptr() for tensor in tensors}
    fresh = tuple(
        result.clone() if _unwrapped(result)[0].untyped_storage().data_ptr() in taken else result
        for result in results
    )
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return fresh
    needed = [tensor for tensor in tensors if tensor.requires_grad]
    if not needed:
        return fresh
    return _Joined.apply(len(fresh), *fresh, *needed)  # type: ignore[no-any-return,no-untyped-call]


# ---------------------------------------------------------------- the nodes


@dataclass(frozen=True, eq=False, repr=False)
class Conditional(ControlFlow):
    """torch.cond: called with the predicate, then lifted arguments, which each branch selects."""

    name: str
    true: Runnable
    false: Runnable
    true_lifted: tuple[int, ...]
    false_lifted: tuple[int, ...]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        predicate, *rest = args
        lifted = tuple(rest)
        plain, is_mapped = _unwrapped(predicate)
        if _traced_by_torch(plain):
            return torch.ops.higher_order.cond(predicate, self._true, self._false, lifted)  # type: ignore[no-any-return]
        if is_mapped or _only_shapes(plain):
            results = _selected(predicate, self._true(*lifted), self._false(*lifted))
        else:
            branch = self._true if _is_chosen(plain, "torch.cond") else self._false
            results = branch(*lifted)
        return _joined(results, lifted)

    def _true(self, *lifted: Any) -> tuple[Any, ...]:
        return self.true.forward(*[lifted[at] for at in self.true_lifted])

    def _false(self, *lifted: Any) -> tuple[Any, ...]:
        return self.false.forward(*[lifted[at] for at in self.false_lifted])

    def graphs(self) -> Mapping[str, Runnable]:
        return {"true": self.true, "false": self.false}


@dataclass(frozen=True, eq=False, repr=False)
class Loop(ControlFlow):
    """torch.while_loop: called with `carried` tensors, then lifted arguments for each graph."""

    name: str
    test: Runnable
    body: Runnable
    carried: int
    test_lifted: tuple[int, ...]
    body_lifted: tuple[int, ...]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        carried, lifted = args[: self.carried], args[self.carried :]
        plain, _ = _unwrapped(carried[0])
        if _traced_by_torch(plain):
            return torch.ops.higher_order.while_loop(self._test, self._body, carried, lifted)  # type: ignore[no-any-return]
        if _only_shapes(plain):
            results = _selected(self._test(*args), self._body(*args), carried)
        else:
            results = tuple(value.clone() for value in carried)
            goes_on, condition, is_mapped = self._next(results, lifted)
            while goes_on:
                after = self._body(*results, *lifted)
                results = _selected(condition, after, results) if is_mapped else after
                goes_on, condition, is_mapped = self._next(results, lifted)
        return _joined(results, args)

    def _next(
        self, results: tuple[Any, ...], lifted: tuple[Any, ...]
    ) -> tuple[bool, torch.Tensor, bool]:
        """Whether any row goes on, the condition of each, and whether they may differ."""
        condition = self._test(*results, *lifted)
        plain, is_mapped = _unwrapped(condition)
        return _is_chosen(plain.any(), "torch.while_loop"), condition, is_mapped

    def _test(self, *args: Any) -> torch.Tensor:
        carried, lifted = args[: self.carried], args[self.carried :]
        (condition,) = self.test.forward(*carried, *[lifted[at] for at in self.test_lifted])
        return condition  # type: ignore[no-any-return]

    def _body(self, *args: Any) -> tuple[Any, ...]:
        carried, lifted = args[: self.carried], args[self.carried :]
        return self.body.forward(*carried, *[lifted[at] for at in self.body_lifted])

    def graphs(self) -> Mapping[str, Runnable]:
        return {"while": self.test, "do": self.body}


@dataclass(frozen=True, eq=False, repr=False)
class Scan(ControlFlow):
    """scan or map over dim 0: called with `carried` tensors, `mapped` tensors of one length, then
    lifted arguments.

    `body` takes the carried tensors, a row of each mapped one and the lifted arguments; it returns
    the next carried tensors, then a row of each stacked result. A map carries nothing.
    """

    name: str
    body: Runnable
    carried: int
    mapped: int

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        first, last = self.carried, self.carried + self.mapped
        carried, mapped, lifted = args[:first], args[first:last], args[last:]
        plain, _ = _unwrapped(mapped[0])
        if _traced_by_torch(plain):
            return self._as_torch_names_it(carried, mapped, lifted)
        if _only_shapes(plain):
            results = self.body.forward(*carried, *[one.select(0, 0) for one in mapped], *lifted)
            length = mapped[0].shape[0]
            stacked = [row.expand(length, *row.shape).clone() for row in results[first:]]
            carried = results[:first]
        else:
            rows: list[tuple[Any, ...]] = []
            for row in zip(*[one.unbind(0) for one in mapped], strict=True):
                results = self.body.forward(*carried, *row, *lifted)
                carried = results[:first]
                rows.append(results[first:])
            stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
        return _joined((*carried, *(column.contiguous() for column in stacked)), args)

    def _as_torch_names_it(
        self, carried: tuple[Any, ...], mapped: tuple[Any, ...], lifted: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        operators = torch.ops.higher_order
        run: Callable[..., tuple[Any, ...]] = self.body.forward
        if carried:
            return tuple(operators.scan(run, [*carried], [*mapped], lifted))
        return tuple(operators.map_impl(run, [*mapped], [*lifted]))

    def graphs(self) -> Mapping[str, Runnable]:
        return {"combine": self.body}


# ---------------------------------------------------------------- checkpoints


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(ControlFlow):
    """`torch.utils.checkpoint.checkpoint(..., use_reentrant=False)` of a function that writes to
    tensors outside it, which its backward does again. Takes what the graph reads; at `given` are
    the program's arguments, which autograd checks for later writes.

    The backward stops when it has what is missing. Unless that is after the last write
    (`writes_early`), the graph runs operator by operator, as eager does.
    """

    name: str
    graph: Runnable
    given: tuple[int, ...]
    writes_early: bool
    preserve_rng_state: bool

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        fakes = [arg for arg in args if type(arg) is FakeTensor]
        if fakes and not _only_shapes(fakes[0]):
            raise DataDependentControlFlow("a checkpointed function writes to tensors outside it")
        if fakes:
            return tuple(self.graph.forward(*args))

        def run(*given: Any) -> tuple[Any, ...]:
            read = list(args)
            for at, value in zip(self.given, given, strict=True):
                read[at] = value
            return tuple(self.graph.forward(*read))

        found = checkpoint(
            run,
            *[args[at] for at in self.given],
            use_reentrant=False,
            preserve_rng_state=self.preserve_rng_state,
        )
        return tuple(found)

    def graphs(self) -> Mapping[str, Runnable]:
        return {"of": self.graph}

    def with_graphs(self, kind: type, replacement: Callable[[Any], Any]) -> ControlFlow:
        """The same call of another graph, if a compiled one writes no more than eager's."""
        return super().with_graphs(kind, replacement) if self.writes_early else self
