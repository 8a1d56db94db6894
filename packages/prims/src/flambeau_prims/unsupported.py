"""What tracing cannot do, as data: exceptions with a stable reason id, the operator and a text for
the user.

Capture turns each into a graph break with that id; the packages above may add their own subclasses
of `Unsupported`.
"""

from __future__ import annotations

from typing import Any


class Unsupported(RuntimeError):
    """The traced program did something this stack has no way to represent.

    `reason` is a stable id, `op` the operator concerned (or None), `text` what happened, `hint`
    what the user may do.
    """

    reason = "prims-unsupported"
    hint = ""

    def __init__(self, text: str, op: Any = None) -> None:
        super().__init__(f"{text} [{self.reason}]")
        self.text = text
        self.op = op


class DataDependent(Unsupported):
    """The program asked for the contents of a tensor (`.item()`, `bool(t)`, `nonzero`), which do
    not exist while tracing.
    """

    reason = "data-dependent"
    hint = "keep the value in a tensor (torch.where), or compute it outside the compiled function"


class DataDependentSize(DataDependent):
    """The program asked something of a size or number that is in a tensor (`x.sum().item()`, the
    length of `x.nonzero()`).
    """

    hint = (
        "torch._check(condition) states what always holds, and the program checks it as it runs; "
        "or decide by torch.where"
    )


class DataDependentControlFlow(DataDependent):
    """torch.cond or torch.while_loop chooses by the contents of a tensor: a trace is a straight
    line.
    """

    reason = "data-dependent-control-flow"
    hint = "use torch.where where the graph differentiates itself; elsewhere the graph is cut there"


class NoRule(Unsupported):
    """No shape rule is registered for the operator, and running it on meta tensors is no way out
    here.
    """

    reason = "no-shape-rule"
    hint = "add a rule in flambeau_prims/rules (docs/add-an-op.md)"


class MetadataMutation(Unsupported):
    """An operator changes a tensor's own sizes or strides in place (`resize_`, `transpose_`,
    `set_`).
    """

    reason = "metadata-mutation"
    hint = "use the out-of-place operator"


class OutArgument(Unsupported):
    """An out= argument that eager resizes, casts to or refuses, by rules that differ from operator
    to operator.
    """

    reason = "out-argument"
    hint = (
        "give a tensor of the result's own shape and dtype, which shares no memory with the "
        "operands"
    )


class OutsideKnownMemory(Unsupported):
    """`as_strided` reads memory of an input beyond what the input itself has, and no guard says how
    much there is.
    """

    reason = "outside-known-memory"
    hint = "pass the tensor whose memory it is, and take the view of that"


class NoCodeGenerator(Unsupported):
    """The graph computes on a device that no kernels are generated for (`meta`, which holds no
    data).
    """

    reason = "no-code-generator"
    hint = "none needed on meta; elsewhere, move the tensors to a CPU or CUDA device"


class AsynchronousCall(Unsupported):
    """A collective whose result the graph does not wait for: it reads its operand until somebody
    does, and a program that plans its memory would free the operand before.
    """

    reason = "asynchronous-call"
    hint = 'wait for the result in the same function; `backend="aot_eager"` plans no memory'


class InvalidOption(ValueError):
    """An argument that eager mode never reads has a value that no compiled code can have. It
    reaches the caller: there is no eager run that would tell of it.
    """
