# ruff: noqa: B008 (a program shows its inputs as its defaults)
"""The smallest programs that give each reason of a registry: docs/graph_breaks.md shows them,
tests/cpu/test_graph_break_reasons.py runs them.

A program is compiled and called without arguments; its inputs are its defaults.
"""

from __future__ import annotations

import array
import dataclasses
import random
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import flambeau
from flambeau_capture import Dim, export

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Example:
    """One program. `needs` are definitions that it uses; `raises` says that it raises, as it does
    eagerly.

    A `script` is no program to compile: it compiles or exports itself, and returns the compiled
    callable or raises the CaptureError.
    """

    program: Callable[..., Any]
    needs: tuple[Any, ...] = ()
    raises: bool = False
    script: bool = False


EXAMPLES: dict[str, Example] = {}

WITHOUT_EXAMPLE = {
    "internal-error": "A defect of the interpreter: none is known to this list.",
    "unsupported-opcode": "Every instruction of the supported versions of Python has a handler.",
    "not-resumable": "A function that breaks and has over 255 locals, or an enormous size.",
    "guard-unstable": "The program reads a value that each read changes, or inputs share memory "
    "(aliased-input-mutation).",
    "aliased-outputs": "No known program makes such outputs without a tensor that covers them.",
    "recorded-write": "flambeau_autograd alone: `flambeau.compile` splits such graphs.",
    "asynchronous-call": "Needs a process group: tests/cpu/test_distributed.py has the programs.",
    "subclass-gradient": "No known class has gradients with integers of their own.",
    "subclass-in-graph": "tests/cpu/test_wrapper_subclasses.py has the class that it takes.",
    "unbacked-numbers": "flambeau_autograd alone: `flambeau.compile` splits such graphs.",
    "prims-unsupported": "The base of the reasons of flambeau_prims; its subclasses say more.",
    "no-shape-rule": "Only with torch.compile's capture: Flambeau's says operator-unsupported.",
    "metadata-mutation": "Only with torch.compile's capture: Flambeau's says operator-unsupported.",
    "kernel-not-loadable": "A cache directory on a file system that is mounted noexec.",
    "engine-refuses": 'With `backend="onnxrt"` and its like: bfloat16 in ONNX Runtime.',
    "engine-random": 'With `backend="onnxrt"` and its like: `torch.rand_like(x)`.',
    "no-sanitizer": '`options={"sanitize": True}` in a process without the address sanitizer.',
}
"""Reasons that no program here gives, and why."""


def example(
    id: str, *needs: Any, raises: bool = False, script: bool = False
) -> Callable[[Any], Any]:
    """Declares the program that gives a reason."""
    if id in EXAMPLES:
        raise ValueError(f"reason {id!r} has two examples")

    def declare(program: Any) -> Any:
        EXAMPLES[id] = Example(program, needs, raises, script)
        return program

    return declare


# ---------------------------------------------------------------- capture


@example("data-dependent")
def reads_a_number(x=torch.ones(3)):
    total = x.sum().item()
    return x / total


@example("unknown-c-function")
def reads_the_clock(x=torch.ones(3)):
    return x + time.time()


class Settings:
    width: int = 3


@example("class-statement", Settings)
def changes_a_class(x=torch.ones(3)):
    return x + dataclasses.dataclass(Settings)().width


async def fetch(x):
    return x + 1


@example("coroutine", fetch)
def calls_an_async_function(x=torch.ones(3)):
    fetch(x).close()
    return x + 1


@example("traceback")
def shows_the_traceback(x=torch.ones(3)):
    try:
        raise ValueError("wrong")
    except ValueError:
        return x + len(traceback.format_exc())


class Meters(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


@example("tensor-subclass", Meters)
def makes_a_subclass(x=torch.ones(3)):
    return x + len(type(x.as_subclass(Meters)).__name__)


@example("unsupported-tensor")
def of_a_sparse_tensor(x=torch.eye(3).to_sparse()):
    return x * 2


@example("tensor-attribute")
def asks_for_memory(x=torch.ones(3)):
    return x + (x.data_ptr() > 0)


@example("exception-escapes", raises=True)
def raises_an_error(x=torch.ones(3)):
    raise ValueError("wrong")


@example("generator-frame")
def generates(x=torch.ones(3)):
    yield x + 1


@example("generator-escapes")
def returns_an_iterator(x=torch.ones(3)):
    return map(torch.sin, (x, x + 1))


def deep(x, n):
    return deep(x + 1, n - 1) if n else x


@example("inline-depth", deep)
def recursion(x=torch.ones(3)):
    return deep(x, 250)


@example("instruction-limit")
def counts_primes(x=torch.ones(3)):
    sieve = [True] * 100_000
    for n in range(2, 100_000):
        if sieve[n]:
            for multiple in range(2 * n, 100_000, n):
                sieve[multiple] = False
    return x * sum(sieve)


@example("guard-limit")
def reads_a_table(x=torch.ones(3), table=tuple((n, str(n)) for n in range(20_000))):
    return x * sum(number for number, _ in table)


@example("backward")
def differentiates(x=torch.ones(3, requires_grad=True)):
    y = (x * 2).sum()
    y.backward()
    return y.detach()


@torch.compiler.disable
def left_alone(x):
    return x + 1


@example("compiler-disable", left_alone)
def calls_what_is_disabled(x=torch.ones(3)):
    return left_alone(x) * 2


@torch.compiler.disable(recursive=False)
def skipped(x):
    return x + 1


@example("compiler-skip", skipped)
def calls_what_is_skipped(x=torch.ones(3)):
    return skipped(x) * 2


@example("compiler-function")
def says_something_to_the_compiler(x=torch.ones(3)):
    torch._dynamo.mark_dynamic(x, 0)
    return x * 2


@example("explicit-break")
def asks_for_a_break(x=torch.ones(3)):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


@example("unstable-iteration")
def advances_an_iterator(x=torch.ones(3), items=iter([1, 2, 3])):
    return x + next(items)


@example("parameter-made")
def makes_a_parameter(x=torch.ones(3)):
    return nn.Parameter(x * 2)


@example("torch-state")
def sets_how_kernels_run(x=torch.ones(3)):
    torch.use_deterministic_algorithms(False)
    return x + 1


def marked(x):
    flambeau.mark_dynamic(x, 0)
    return x


@example("dynamic-mark", marked, raises=True)
def fixes_a_marked_size(x=marked(torch.ones(3, 4))):
    return x * 2 if x.shape[0] == 3 else x


@example("recompile-limit", script=True)
def compiles_for_every_text():
    compiled = flambeau.compile(lambda x, text: x + len(text), recompile_limit=2)
    for text in ("a", "bc", "def"):
        compiled(torch.ones(3), text)
    return compiled


@example("call-limit", script=True)
def loops_for_long():
    def program(x):
        for _ in range(1000):
            x = x + 1
        return x

    compiled = flambeau.compile(program, options={"call_limit": 100})
    compiled(torch.ones(3))
    return compiled


@example("side-effect")
def records_warnings(x=torch.ones(3)):
    with warnings.catch_warnings(record=True):
        return x + 1


@example("unsupported-argument")
def passes_an_array_of_the_standard_library(x=torch.ones(3), values=array.array("f", [1, 2, 3])):
    return x + torch.tensor(values)


@example("unsupported-input")
def reads_a_matrix(x=torch.ones(3), weights=np.matrix([[1.0, 2.0, 3.0]])):
    return x * torch.from_numpy(np.asarray(weights))


@example("unsupported-mutation")
def raises_a_known_error(x=torch.ones(3), error=ValueError("made once")):
    try:
        raise error
    except ValueError:
        return x + 1


@example("unsupported-result")
def returns_a_view_of_a_dict(x=torch.ones(3)):
    return {"x": x + 1}.keys()


@example("operator-unsupported")
def makes_a_sparse_tensor(x=torch.eye(3)):
    return x.to_sparse().to_dense() + 1


@example("out-argument")
def writes_to_another_dtype(x=torch.ones(3, 3), out=torch.zeros(3, dtype=torch.float64)):
    return torch.sum(x, 0, out=out)


@example("higher-order-operator")
def checkpoints(x=torch.ones(3)):
    return checkpoint(torch.sin, x, use_reentrant=True)


@torch.library.triton_op("flambeau_docs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@example("triton-kernel", twice._abstract_fn)
def has_no_gradient(x=torch.ones(3, requires_grad=True)):
    return torch.ops.flambeau_docs.twice(x)


class Named(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.label = ctx.name()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@example("autograd-function", Named)
def applies_a_function(x=torch.ones(3, requires_grad=True)):
    return Named.apply(x)


@example("numpy-unsupported")
def sorts_by_two_keys(x=np.ones(3)):
    return np.lexsort((x, x))


@example("numpy-dtype")
def counts_in_uint32(x=np.arange(3, dtype=np.uint32)):
    return x + 1


@example("host-random")
def chooses_an_object(x=torch.ones(3)):
    return random.choice([torch.sin, torch.cos])(x)


@example("distributed", raises=True)
def communicates(x=torch.ones(3)):
    torch.distributed.all_reduce(x)
    return x + 1


# ---------------------------------------------------------------- export


@example("size-specialised", script=True)
def exports_a_fixed_size():
    def program(x):
        return x * 2 if x.shape[0] == 4 else x

    export(program, (torch.ones(4, 3),), dynamic_shapes={"x": {0: Dim("batch")}})


@example("size-relation", script=True)
def exports_a_limited_size():
    def program(x):
        return x * 2 if x.shape[0] <= 512 else x

    export(program, (torch.ones(4, 3),), dynamic_shapes={"x": {0: Dim("batch")}})


class Box:
    def __init__(self, value):
        self.value = value


@example("export-input", Box, script=True)
def exports_what_is_in_a_box():
    export(lambda box: box.value + 1, (Box(torch.ones(3)),))


@example("export-effect", script=True)
def exports_a_print():
    export(lambda x: print(x.shape) or x + 1, (torch.ones(3),))


@example("export-result", script=True)
def exports_a_function():
    export(lambda x: lambda y: x + y, (torch.ones(3),))


# ------------------------------------------------------------- graphs that run operator by operator


def overlapping():
    base = torch.ones(4)
    return base[1:], base[:-1]


@example("aliased-input-mutation", overlapping)
def writes_to_overlapping_inputs(inputs=overlapping()):
    x, y = inputs
    x.mul_(2)
    return x + y


@example("no-code-generator")
def computes_on_meta(x=torch.ones(3)):
    return x + 1, torch.ones(3, device="meta") * 2


@example("untraced-calls")
def differentiates_beside_inference_mode(x=torch.ones(3, requires_grad=True)):
    with torch.inference_mode():
        y = x * 2
    (gradient,) = torch.autograd.grad((x * x).sum(), x)
    return gradient + y.clone()


@example("no-functional-form")
def computes_in_place(x=torch.ones(3)):
    y = x * 2
    y.polygamma_(1)
    return y + 1


@example("write-through-view")
def writes_to_an_expanded_tensor(x=torch.ones(1)):
    y = (x * 2).expand(3)
    y.masked_fill_(torch.tensor([True, True, True]), 5.0)
    return y + 1


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(count)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (count,) = ctx.saved_tensors
        count.add_(1)
        return gradient * 2, None


@example("mutation-in-backward", Counting)
def writes_in_backward(x=torch.ones(3, requires_grad=True), count=torch.zeros(())):
    return Counting.apply(x, count)


@example("backward-raises")
def changes_what_backward_needs(x=torch.ones(3, requires_grad=True)):
    y = x.exp()
    y.add_(1)
    return y


@example("leaf-made-inside")
def makes_a_leaf(x=torch.ones(3)):
    return torch.ones(3, requires_grad=True) * x


@example("input-mutation-autograd")
def asks_for_gradients_of_an_input(x=torch.ones(3)):
    x.requires_grad_()
    return x * 2


@example("outside-known-memory")
def reads_around_its_input(x=torch.arange(9.0)[:3]):
    return x.as_strided((6,), (1,)) * 2


@example("data-dependent-control-flow")
def chooses_by_contents(x=torch.ones(3, requires_grad=True)):
    y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return torch.autograd.grad(y.sum(), x)


# ---------------------------------------------------------------- the environment


@example("no-compiler", script=True)
def missing_compiler():
    compiled = flambeau.compile(lambda x: x.sin(), options={"cxx": "no-such-compiler"})
    compiled(torch.randn(8))
    return compiled


@example("unusable-compiler", script=True)
def no_compiler_at_all():
    compiled = flambeau.compile(lambda x: x.sin(), options={"cxx": "false"})
    compiled(torch.randn(8))
    return compiled


@example("unusable-cache", script=True)
def cache_below_a_file():
    compiled = flambeau.compile(lambda x: x.sin(), options={"cache_dir": Path("/dev/null/cache")})
    compiled(torch.randn(8))
    return compiled
