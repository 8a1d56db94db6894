"""A compiled backward as a chain of autograd nodes, each with the gradients of one piece.

    loss -> node of piece 0 -> AccumulateGrad of g_v  (hooks begin to reduce g_v ...)
                            -> node of piece 1 -> AccumulateGrad of g_w  (... while g_w is computed)

DistributedDataParallel reduces gradients in buckets, from hooks which autograd's engine calls when
it has accumulated a gradient. The engine does that before it runs the next node of the chain.
Which buckets there are is known while such a module runs its forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from flambeau_autograd.backward_progress import Progress
from flambeau_autograd.graph_call import getter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_autograd.cut_backward import Groups

_task = torch._C._current_graph_task_id
_will_run = torch._C._will_engine_execute_node
_FIRST_BUCKET = 1024 * 1024


def bucket_limits() -> tuple[int, ...]:
    """The sizes in bytes of the buckets of the module in parallel whose forward runs; () outside of
    any. The last is that of all further ones.
    """
    module: Any = DistributedDataParallel._active_ddp_module
    if module is None:
        return ()
    limits = tuple(getattr(module, "bucket_bytes_cap_list", ()))
    if limits:
        return limits
    cap = int(module.bucket_bytes_cap)
    return (_FIRST_BUCKET, cap) if module.bucket_bytes_cap_default else (cap,)


class WholeBackward:
    """The one node of a backward that is not cut. Its inputs are the `count` arguments of the
    graph; those at `positions` get the gradients, in this order.
    """

    takes_tuple = False
    """Whether the arguments are the node's first input, as a tuple."""

    def __init__(self, positions: list[int], count: int) -> None:
        number = {position: 1 + index for index, position in enumerate(positions)}
        self._spread = getter([number.get(position, 0) for position in range(count)])

    def recording(self, apply: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        """A function of the graph's arguments that records the node; `apply` does of its inputs."""
        return apply

    def edges(self, ctx: Any) -> Sequence[tuple[Any, int]]:
        """Where the gradients go, in their order."""
        return [edge for edge in ctx.next_functions if edge[0] is not None]

    def all(self, gradients: Any) -> Sequence[Any]:
        """All gradients of a call of the compiled backward."""
        return gradients  # type: ignore[no-any-return]

    def handed(
        self, ctx: Any, gradients: Any, define: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """What the node gives to its inputs; `define` replaces what is undefined by None."""
        return self._spread((None, *define(gradients)))


class ConnectedBackward(WholeBackward):
    """The one node of a backward whose inputs are, besides the arguments as a tuple, only those at
    `positions`: the others require grad, but no result is connected to them.
    """

    takes_tuple = True

    def __init__(self, positions: list[int]) -> None:
        self._connected = getter(positions)

    def recording(self, apply: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        connected = self._connected
        return lambda *args: apply(args, *connected(args))

    def handed(
        self, ctx: Any, gradients: Any, define: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        return (None, *define(gradients))


class BackwardChain(WholeBackward):
    """The nodes of a backward that is cut into groups of gradients."""

    takes_tuple = True

    def __init__(self, positions: list[int], groups: Groups) -> None:
        self.tensors = getter(positions)
        self.groups = groups
        self.followers = [_follower(group) for group in groups[1:]]

    def recording(self, apply: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        pick, first = self.tensors, self.groups[0]
        later = list(zip(reversed(self.groups[1:]), reversed(self.followers), strict=True))

        def record(*args: Any) -> tuple[Any, ...]:
            tensors = pick(args)
            link: tuple[torch.Tensor, ...] = ()
            for group, follower in later:
                link = (follower(*(tensors[position] for position in group), *link),)
            return apply(args, *(tensors[position] for position in first), *link)  # type: ignore[no-any-return]

        return record

    def edges(self, ctx: Any) -> Sequence[tuple[Any, int]]:
        found: dict[int, Any] = {}
        for group in self.groups:
            edges = ctx.next_functions
            found.update(zip(group, edges, strict=False))
            ctx = edges[-1][0]
        return [found[position] for position in range(len(found))]

    def all(self, gradients: Any) -> Sequence[Any]:
        return gradients.finish() if isinstance(gradients, Progress) else gradients

    def handed(
        self, ctx: Any, gradients: Any, define: Callable[[Sequence[Any]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        return (None, *_hand_out(ctx, self.groups[0], gradients, define, is_last=False))


def _hand_out(
    ctx: Any,
    group: Sequence[int],
    gradients: Any,
    define: Callable[[Sequence[Any]], tuple[Any, ...]],
    *,
    is_last: bool,
) -> tuple[Any, ...]:
    """The gradients of one node; what is left is for the next, if the engine runs it."""
    own = define(gradients.step() if isinstance(gradients, Progress) else gradients)
    handed = tuple(own[position] for position in group)
    if is_last:
        return handed
    follower = ctx.next_functions[-1][0]
    if _will_run(follower):
        follower.begun[_task()] = (gradients, define)
    return (*handed, None)


def _follower(group: Sequence[int]) -> Callable[..., torch.Tensor]:
    """Record a node that goes on with a backward; its result is for the node before it."""

    class CompiledFunction(torch.autograd.Function):
        """A later piece of a compiled backward in autograd's eyes."""

        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            ctx.begun = {}
            ctx.is_last = len(tensors) == len(group)
            ctx.set_materialize_grads(False)
            return tensors[0].new_empty(0)

        @staticmethod
        def backward(ctx: Any, _: None) -> tuple[Any, ...]:
            gradients, define = ctx.begun.pop(_task())
            return _hand_out(ctx, group, gradients, define, is_last=ctx.is_last)

    # As in `runtime_wrappers`: the C entry, without the look for functorch's transforms.
    return super(torch.autograd.Function, CompiledFunction).apply  # type: ignore[misc, no-any-return]
