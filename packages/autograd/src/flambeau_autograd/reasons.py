"""What AOT autograd cannot do, as data: one exception class a reason, each with a stable id and a
hint for the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx


class AliasedMutation(Unsupported):
    """Two inputs share memory, and the program writes to one of them."""

    reason = "aliased-input-mutation"
    hint = "pass tensors that do not overlap, or clone one of them before the call"


class AliasedOutputs(Unsupported):
    """Outputs that share memory, but no tensor the program made covers all of them in autograd's
    eyes.
    """

    reason = "aliased-outputs"
    hint = "return one of the tensors and take the views outside of the compiled function"


class NoFunctionalForm(Unsupported):
    """The operator mutates its arguments and no functional operator corresponds to it."""

    reason = "no-functional-form"
    hint = "use the out-of-place operator"


class ViewWrite(Unsupported):
    """A write through a view whose inverse is not known."""

    reason = "write-through-view"
    hint = "write to the base tensor by indexing, or use the out-of-place operator"


class MutationInBackward(Unsupported):
    """The backward formula writes to an input of the forward."""

    reason = "mutation-in-backward"
    hint = "update buffers in forward"


class BackwardFailed(Unsupported):
    """Eager autograd raises an error when this program's backward runs; running eagerly raises it
    at the right moment.
    """

    reason = "backward-raises"
    hint = "the error is in the program: it also fails without compiling"


class LeafInside(Unsupported):
    """The program makes and returns a tensor that requires grad though no input of it does."""

    reason = "leaf-made-inside"
    hint = "make tensors with requires_grad=True outside of the compiled function"


class TrainingOnlyMutation(Unsupported):
    """A write to an input whose effect on autograd cannot be reproduced from outside."""

    reason = "input-mutation-autograd"
    hint = "use the out-of-place operator"


class RecordedWrite(Unsupported):
    """The program reads an input again that it has written to under autograd: the gradient of the
    written tensor is complete only if it is an input of what reads it.

    The graph can be cut after `nodes`.
    """

    reason = "recorded-write"
    hint = "write to a copy of the input"

    def __init__(self, text: str, nodes: Sequence[fx.Node]) -> None:
        super().__init__(text)
        self.nodes = nodes


class UnbackedNumbers(Unsupported):
    """The graph computes numbers itself (`x.sum().item()`, the length of `x.nonzero()`) that its
    later sizes depend on.
    """

    reason = "unbacked-numbers"
    hint = (
        "the graph runs operator by operator; masks and torch.where in place of selections "
        "would be compiled"
    )


class UntracedCalls(Unsupported):
    """The graph makes calls that need real tensors or change torch's own state (inference mode,
    random generators, hooks).
    """

    reason = "untraced-calls"
    hint = (
        "the graph runs operator by operator; such calls outside of what calls "
        "torch.autograd.grad are compiled around"
    )


class SubclassGradient(Unsupported):
    """The gradient of a tensor subclass consists of other parts than can be returned for it."""

    reason = "subclass-gradient"
    hint = "give the subclass gradients that hold no integers of their own"


class SubclassGraph(Unsupported):
    """A tensor subclass in a place where a graph of its plain tensors cannot stand for it."""

    reason = "subclass-in-graph"
    hint = "pass the tensor as an argument, or take it apart before the call"


REASONS: dict[str, type[Unsupported]] = {
    kind.reason: kind
    for kind in (
        AliasedMutation, AliasedOutputs, NoFunctionalForm, ViewWrite, MutationInBackward,
        BackwardFailed, LeafInside, TrainingOnlyMutation, RecordedWrite, UnbackedNumbers,
        UntracedCalls, SubclassGradient, SubclassGraph,
    )
}  # fmt: skip
