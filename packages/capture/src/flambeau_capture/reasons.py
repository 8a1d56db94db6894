"""Why a frame could not be captured, as data: each reason has a stable id, its context, an
explanation and a hint.

The interpreter raises `GraphBreak(id, detail)`; `capture_frame` turns it into a `record.Break` with
the user's file and line.

docs/graph_breaks.md is made of these by `python -m tools.checks.reasons_page`, with a program for
each from tests/programs/graph_breaks.py: a new reason needs one there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flambeau_capture.record import Break

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_capture.record import Guard
    from flambeau_prims.unsupported import Unsupported


@dataclass(frozen=True, slots=True)
class Reason:
    """One kind of graph break.

    `id` is stable across versions; `context` says what the program was doing, `explanation` why
    that cannot be captured, `hint` what the user may do about it.
    """

    id: str
    context: str
    explanation: str
    hint: str


REASONS: dict[str, Reason] = {}


def _reason(id: str, context: str, explanation: str, hint: str) -> None:
    if id in REASONS:
        raise ValueError(f"reason {id!r} is declared twice")
    REASONS[id] = Reason(id, context, explanation, hint)


_reason(
    "data-dependent",
    "a Python value was asked of a tensor's contents (t.item(), t.tolist(), a mask's "
    "nonzero(), or bool(t) where that has come out both ways)",
    "tensor contents do not exist while a frame is captured, so the program cannot branch on them",
    "keep the choice inside tensors (torch.where, masked operations), or move the decision "
    "outside the compiled function",
)
_reason(
    "unknown-c-function",
    "a function written in C was called that is not known to be free of side effects",
    "C functions run natively during capture only when they are known to be pure on their "
    "arguments",
    "move the call outside the compiled function, or wrap tensor code as a torch.library "
    "custom operator",
)
_reason(
    "unsupported-opcode",
    "a bytecode instruction without a handler",
    "the interpreter has no handler for this instruction",
    "call what uses it outside the compiled function",
)
_reason(
    "class-statement",
    "a class is made or changed in the frame in a way that runs code of the program natively",
    "metaclasses and hooks written in C or in the standard library would run the program's "
    "own functions outside the interpreter",
    "define the class outside the compiled function",
)
_reason(
    "coroutine",
    "an async function was called, or an async statement reached",
    "a coroutine is suspended by its event loop, not by the frame",
    "compile the synchronous parts of the function",
)
_reason(
    "traceback",
    "the traceback of an exception was read inside the frame",
    "the frames that a traceback would show do not exist while a frame is captured",
    "handle the exception without its traceback, or outside the compiled function",
)
_reason(
    "unsupported-argument",
    "a torch function was called with a value that a graph cannot hold",
    "graph nodes hold tensors, numbers, strings, dtypes, devices and containers of these",
    "pass tensors and plain Python values to torch functions",
)
_reason(
    "unsupported-input",
    "a value of a kind that cannot be an input of a captured frame was read",
    "no guard or graph input is defined for values of this type",
    "convert the value to a plain tensor or Python value before the compiled function",
)
_reason(
    "tensor-subclass",
    "a tensor of a Python subclass was read",
    "a class whose `__torch_dispatch__` answers operators is captured if it can be taken apart and "
    "made again (`__tensor_flatten__`, `__tensor_unflatten__`), as torch functions of others are",
    "give the class these two methods, or unwrap the tensor before the compiled function",
)
_reason(
    "unsupported-tensor",
    "a tensor without plain strided storage was read (sparse, quantized, nested, mkldnn, "
    "or wrapped by a transform)",
    "specs describe strided tensors only",
    "convert it with .to_dense() or compute it outside the compiled function",
)
_reason(
    "tensor-attribute",
    "an attribute of a tensor was read or written that the graph cannot express",
    "the attribute exposes memory or autograd state that a captured graph does not have",
    "read it outside the compiled function",
)
_reason(
    "exception-escapes",
    "the frame ends by raising an exception",
    "the frame is left to the interpreter so that the exception, its traceback and its "
    "notes are exactly eager's",
    "none needed; if the exception is not expected, run the function eagerly to see it",
)
_reason(
    "unsupported-result",
    "the frame returns, or stores where it outlives the frame, an object that cannot be rebuilt",
    "results are rebuilt from graph outputs, constants, containers and plain Python objects",
    "return tensors and plain Python containers or objects",
)
_reason(
    "unsupported-mutation",
    "an object that existed before the call is changed in a way that cannot be replayed",
    "changes of existing objects are recorded and replayed at exit; this kind of change "
    "has no recorded form",
    "move the change outside the compiled function",
)
_reason(
    "generator-frame",
    "the compiled function is itself a generator or a coroutine",
    "a generator's frame outlives its call; generators are captured only when they are "
    "consumed inside the frame",
    "compile the function that consumes the generator",
)
_reason(
    "generator-escapes",
    "a generator made in the frame is returned or stored",
    "its suspended frame cannot be rebuilt at exit",
    "consume it inside the compiled function, for example with list()",
)
_reason(
    "inline-depth",
    "calls are nested deeper than CaptureOptions.inline_depth",
    "recursion was not bounded while the frame was captured",
    "raise inline_depth, or call the recursive part outside the compiled function",
)
_reason(
    "instruction-limit",
    "the frame ran more than CaptureOptions.instruction_limit instructions of bytecode "
    "without a call that the graph holds",
    "capture interprets each instruction, which takes far longer than to run it, and such "
    "code has little for a graph",
    "compute it outside the compiled function, or raise instruction_limit",
)
_reason(
    "guard-limit",
    "the frame read more of what existed before the call than guards are kept for",
    "every value that was read is checked on each call, which takes longer than the frame itself",
    "pass large data as tensors or arrays, or read it outside the compiled function",
)
_reason(
    "call-limit",
    "the frame makes more calls of torch than CaptureOptions.call_limit",
    "loops are unrolled into the graph, and compiling takes time in proportion: such a "
    "call runs eagerly, what it calls may be compiled",
    "compile the body of the loop, write the loop as operations on whole tensors, or raise "
    "call_limit",
)
_reason(
    "triton-kernel",
    "a Triton kernel was launched in a way that a graph cannot hold",
    "a launch is a node with tensors, numbers and constants; what runs on the host around it, and "
    "arguments of other types, are not part of the graph",
    "pass tensors, numbers and constants, and register no hooks on the kernel; or call it from a "
    "torch.library.custom_op",
)
_reason(
    "autograd-function",
    "torch.autograd.Function.apply was called in a way that a graph cannot hold",
    "each method is captured as a graph: backward, jvp and vmap may only compute tensors, of "
    "what the forward takes, reads and returns",
    "keep side effects out of these methods, pass plain arguments, or use "
    "torch.library.custom_op with register_autograd",
)
_reason(
    "backward",
    "backward() was called inside the captured function, or torch.autograd.grad by what "
    "has a history outside it",
    "a graph knows the history of tensors since it began: backward() would go on beyond "
    "that, into leaves' .grad",
    "compile the part that computes the loss, and call backward() on its result",
)
_reason(
    "compiler-disable",
    "a function marked with torch.compiler.disable was called",
    "the function asked not to be captured",
    "remove the mark, or call it outside the compiled function",
)
_reason(
    "compiler-skip",
    "a function marked with torch.compiler.disable(recursive=False) was called",
    "the function asked not to be captured itself; what it calls is",
    "remove the mark, or call it outside the compiled function",
)
_reason(
    "compiler-function",
    "a function that says something to the compiler was called from captured code "
    "(set_stance, disable, mark_dynamic, reset)",
    "what it says would hold while the program is captured, and not at each call",
    "call it outside the compiled function",
)
_reason(
    "explicit-break",
    "torch._dynamo.graph_break() was called",
    "the program asked for a graph break here",
    "remove the call",
)
_reason(
    "higher-order-operator",
    "a torch function that takes functions (torch.cond, torch.vmap, torch.func.grad, "
    "checkpoint) was called in a way that a graph cannot hold",
    "the functions are captured as graphs that a node holds: they return tensors, and what "
    "they compute inside stays inside",
    "return what is needed from the function, keep side effects out of it, or call it "
    "outside the compiled function",
)
_reason(
    "side-effect",
    "a C function with an effect on the world outside (files, clocks, random state) was called",
    "the effect would happen at capture instead of at each call",
    "move the call outside the compiled function",
)
_reason(
    "operator-unsupported",
    "a torch operator could not be run on fake tensors",
    "no shape rule is known for the operator on these arguments",
    "see the message for the operator; a rule can be added to flambeau_prims/rules",
)
_reason(
    "out-argument",
    "an out= argument has another shape or dtype than the result, or shares memory with an operand",
    "eager resizes it, casts to it or refuses it, by rules that differ from operator to operator",
    "give a tensor of the result's own shape and dtype, which shares no memory with the operands",
)
_reason(
    "parameter-made",
    "an nn.Parameter was made, or a module with its parameters copied",
    "a graph returns tensors; parameters are leaves of their own, which autograd "
    "accumulates into: they are made between graphs",
    "make modules and parameters outside the compiled function",
)
_reason(
    "distributed",
    "a function of torch.distributed was called that graphs do not hold, or a module that "
    "communicates in its backward pass",
    "graphs hold collectives of tensors that are waited for at once and record no gradient; "
    "asynchronous ones, messages, barriers and those of objects run between graphs",
    "none needed; what is computed between such calls is compiled",
)
_reason(
    "torch-state",
    "a state of torch was set that operators read when they run: settings of kernels, "
    "autograd's hooks on saved tensors, modes of the program",
    "a compiled graph does not change such states in its midst: they are set between "
    "graphs, by the interpreter",
    "set it outside the compiled function",
)
_reason(
    "unstable-iteration",
    "a C iterator that existed before the call was advanced",
    "its position cannot be read or set back",
    "pass a list or a tuple instead of an iterator",
)


_reason(
    "not-resumable",
    "a graph break where the frame cannot be taken up again",
    "the function looks at its own local variables by name, or holds something that cannot "
    "be rebuilt in the middle of it",
    "see the reason of the break itself; move it to a function of its own",
)
_reason(
    "dynamic-mark",
    "a size marked by mark_dynamic is outside of the marked range, or the program needs it "
    "to be one certain value; or it asks something of one "
    "marked by mark_unbacked",
    "a size that the program marks is never specialised silently",
    "remove what fixes the size, or use maybe_mark_dynamic; torch._check states what "
    "always holds of a size",
)
_reason(
    "size-specialised",
    "in an export, a size that dynamic_shapes says varies was fixed to one value",
    "the program converts the size to an int, loops over it or compares it with ==",
    "declare the size static or Dim.AUTO, or write the line so that it serves every size",
)
_reason(
    "size-relation",
    "in an export, the program needs a relation of sizes that dynamic_shapes does not promise",
    "a comparison in the program, or an operator, holds for some of the declared sizes only",
    "declare the Dims so that it always holds, or use Dim.AUTO",
)
_reason(
    "export-input",
    "in an export, a tensor was read from inside an argument of a class that export does "
    "not look into",
    "arguments are taken apart into tensors through lists, tuples, dicts and dataclasses; "
    "other objects are taken as they are",
    "pass the tensor itself, or put it into a dataclass or a dict",
)
_reason(
    "export-effect",
    "in an export, the program changes something that an exported graph cannot change",
    "an exported graph writes to tensors in place and replaces buffers of the model; it "
    "keeps no other state and prints nothing",
    "return the value instead, or make it a registered buffer",
)
_reason(
    "export-result",
    "in an export, the result holds an object that an exported graph cannot make",
    "results are rebuilt from tensors, plain values, containers, dataclasses and plain "
    "objects, without the program's code",
    "return tensors and plain containers",
)
_reason(
    "numpy-unsupported",
    "a NumPy function, method or form of indexing was used that has no torch calls for it",
    "functions of arrays are captured as torch calls; what is written in C in NumPy is "
    "captured where it is listed",
    "write it with other NumPy functions, or move the call outside the compiled function",
)
_reason(
    "numpy-dtype",
    "an array of a dtype was met that is not captured (strings, objects, dates, records, "
    "unsigned integers beyond 8 bits, long doubles)",
    "arrays are captured as tensors of the same dtype",
    "convert the array to bool, uint8, a signed integer, a float of at most 64 bits or a "
    "complex number",
)
_reason(
    "host-random",
    "a random generator of Python's or NumPy's was used in a way that no call of a graph "
    "stands for",
    "what such a generator draws is drawn when the graph runs, as numbers or arrays; "
    "choices among other objects, and the states of generators, are "
    "Python's own",
    "draw an index, draw outside the compiled function, or use torch's random functions",
)
_reason(
    "recompile-limit",
    "a call that no entry serves, after as many compilations as "
    "CaptureOptions.recompile_limit allows",
    "each entry costs a compilation, and checks on the way to the next; such calls run eagerly",
    "pass what changes as a tensor, mark it dynamic, or raise the limit",
)
_reason(
    "guard-unstable",
    "a guard does not hold on the very call that it was made from",
    "what the program read changes when it is read, so no entry could ever serve it",
    "keep the value in an attribute or a variable that reading does not change",
)
_reason(
    "internal-error",
    "the interpreter itself failed",
    "this is a defect of flambeau_capture, not of the program, which runs eagerly",
    "please report it, with the text above and the function",
)


class GraphBreak(BaseException):
    """Ends a capture. A BaseException: `except Exception` of the program does not see it.

    `conditions`: guards without which it might not break. The record of the frame up to the break,
    which has no guards of the step that breaks, keeps them.
    """

    def __init__(
        self, id: str, detail: str, *, hint: str = "", conditions: Sequence[Guard] = ()
    ) -> None:
        super().__init__(f"{detail} [{id}]")
        self.reason = REASONS[id]
        self.detail = detail
        self.hint = hint
        self.conditions = tuple(conditions)

    @classmethod
    def of_unsupported(cls, error: Unsupported) -> GraphBreak:
        """The break where prims could not represent what the program did."""
        id = error.reason if error.reason in REASONS else "operator-unsupported"
        return cls(id, error.text.replace("FakeTensor(", "a tensor ("), hint=error.hint)

    def to_break(self, where: str) -> Break:
        """The recorded form, with the user's place."""
        return Break(
            self.reason.id,
            f"{self.detail}: {self.reason.explanation}",
            where,
            self.hint or self.reason.hint,
        )


def unsupported_instruction(name: str) -> GraphBreak:
    """The break at a bytecode instruction without a handler."""
    return GraphBreak("unsupported-opcode", f"bytecode instruction {name}")
