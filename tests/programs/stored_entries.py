"""Programs for entries that one process stores and another one finds, or must not find.

`python -m tests.programs.stored_entries write` makes and stores the entries; `... read` is the next
process. `--device=cuda` may follow, and then names of programs. For the programs of `CHANGED`
something is different there: a closure, a class, a switch of torch. Each prints, as JSON, what
became of the call: "stored" where the entry was read, "capture" where it was not; all results are
compared with eager's.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import enum
import functools
import json
import math
import random
import sys
import threading
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

import flambeau
from flambeau.report import report_of
from flambeau_capture.compiled import state_of

LATER = sys.argv[1:2] == ["read"]
"""Whether this is the second process."""

Program = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
SAME: dict[str, Program] = {}
CHANGED: dict[str, Program] = {}
OF_THE_PROCESS: dict[str, Program] = {}
"""Programs whose entries are for one process."""
SURROUNDED: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {}
"""What the second process calls a program of CHANGED in."""
OPTIONS: dict[str, dict[str, Any]] = {"dynamic_sizes": {"dynamic": True}}
"""What the second process compiles a program of CHANGED with, and both one of SAME."""
TRAINED: dict[str, Callable[..., Any]] = {}
"""What is done with the compiled function of a program of SAME or CHANGED, with gradients on: a
function of it and the arguments, whose results are compared.
"""


def same(program: Program) -> Program:
    SAME[program.__name__] = program
    return program


def changed(program: Program) -> Program:
    CHANGED[program.__name__] = program
    return program


def trained(use: Callable[..., Any]) -> Callable[[Program], Program]:
    def decorate(program: Program) -> Program:
        TRAINED[program.__name__] = use
        return program

    return decorate


def of_the_process(program: Program) -> Program:
    OF_THE_PROCESS[program.__name__] = program
    return program


def x() -> torch.Tensor:
    return torch.randn(4, 6)


def chosen(first: Any, second: Any) -> Any:
    return second if LATER else first


# ---------------------------------------------------------------- the same in both processes


@same
def batched() -> Any:
    return lambda x: torch.vmap(lambda row: torch.addr(x, row[:4], row))(x), (x(),)


@same
def a_namespace_of_operators() -> Any:
    return lambda x: torch.ops.aten.slice(x, 1, 0, 3).sin(), (x(),)


@same
def a_special_form() -> Any:
    def which(x: torch.Tensor, forms: list[Any]) -> torch.Tensor:
        return x.sin() if forms[0] is typing.Literal else x.cos()

    return which, (x(), [typing.Literal, typing.Union])


@same
def parametrized() -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (x(),)


_LOCK = threading.Lock()


@functools.lru_cache
@torch.compiler.assume_constant_result
def is_installed(name: str) -> bool:
    return name in sys.modules


@torch.compiler.assume_constant_result
def scale_of_this_process(factor: float, *, exponent: int = 1) -> float:
    return factor * chosen(2.0, 5.0) ** exponent


@torch.compiler.assume_constant_result
def fails_later() -> str:
    if LATER:
        raise RuntimeError("not in this process")
    return "sin"


@same
def a_result_that_is_assumed_constant() -> Any:
    return lambda x: x * 2 if is_installed("torch") else x.sin(), (x(),)


@changed
def another_result_that_is_assumed_constant() -> Any:
    return lambda x: x * scale_of_this_process(3.0, exponent=2), (x(),)


@changed
def an_assumed_constant_that_fails() -> Any:
    def called(x: torch.Tensor) -> torch.Tensor:
        try:
            return getattr(x, fails_later())()
        except RuntimeError:
            return x.cos()

    return called, (x(),)


@same
def a_module_that_stands_for_another() -> Any:
    return lambda x: x.sin() if torch.backends.fp32_precision == "none" else x.cos(), (x(),)


@same
def a_class_that_a_module_holds_under_another_name() -> Any:
    def capturing(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.sin() if torch.xpu.is_current_stream_capturing() else x.cos()
        except RuntimeError:  # torch was built without it, and has a class in its place
            return x.tan()

    return capturing, (x(),)


@same
def a_lock() -> Any:
    def locked(x: torch.Tensor) -> torch.Tensor:
        with _LOCK:
            return x.sin()

    return locked, (x(),)


@torch.library.custom_op("flambeau_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * scale


@scaled.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def _context_of_scaled(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.scale = inputs[1]


def _gradient_of_scaled(ctx: Any, gradient: torch.Tensor) -> Any:
    return torch.ops.flambeau_tests.scaled(gradient, ctx.scale), None


scaled.register_autograd(_gradient_of_scaled, setup_context=_context_of_scaled)


@same
def an_operator_of_the_program() -> Any:
    return lambda x: torch.ops.flambeau_tests.scaled(x.sin(), 2.0).cos(), (x(),)


def gradients(function: Any, x: torch.Tensor) -> Any:
    result = function(x)
    return result, torch.autograd.grad(result.sum(), x)


@trained(gradients)
@same
def a_trained_operator_of_the_program() -> Any:
    return lambda x: torch.ops.flambeau_tests.scaled(x.sin(), 2.0), (x().requires_grad_(),)


@trained(gradients)
@same
def a_trained_private_method() -> Any:
    return lambda x: x.sin() * (x > -100)._is_all_true(), (x().requires_grad_(),)


class Tilted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return 2 * x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * (2 * x.cos() + 1)


@trained(gradients)
@same
def a_function_with_its_gradient() -> Any:
    return lambda x: Tilted.apply(x.cos()), (x().requires_grad_(),)


@same
def function() -> Any:
    return lambda x, y: (torch.sin(x) * y, x + 1), (x(), x())


@same
def no_graph() -> Any:
    return lambda x: (x, 3), (x(),)


@same
def module() -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(), nn.Linear(8, 2))
    return net.eval(), (x(),)


@same
def buffers() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), (torch.randn(2, 3, 8, 8),)


@same
def closure_of_the_same_value() -> Any:
    scale = 1.5
    return lambda x: x * scale, (x(),)


@dataclass
class Pair:
    first: torch.Tensor
    second: Any


@same
def objects() -> Any:
    def build(x: torch.Tensor, config: dict[str, Any]) -> Any:
        total = x * config["scale"]
        return {"pair": Pair(total, config["names"][0]), "order": OrderedDict(a=total + 1, b=[x])}

    return build, (x(), {"scale": 2.5, "names": ["one", "two"]})


@same
def a_class_in_a_function() -> Any:
    class Local(nn.Module):
        gain = 3

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6))

        @property
        def doubled(self) -> torch.Tensor:
            return self.weight * 2

        @staticmethod
        def shifted(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        def forward(self, x: torch.Tensor, *, power: int = 2) -> torch.Tensor:
            return self.shifted(x * self.doubled) ** power * self.gain

    return Local(), (x(),)


def repeated(times: int) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(x: Any) -> Any:
            for _ in range(times):
                x = function(x)
            return x

        return call

    return decorate


@same
def decorated() -> Any:
    return repeated(3)(lambda x: torch.tanh(x) + 0.5), (x(),)


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


@same
def enumeration() -> Any:
    return lambda x, mode: x.sum(0) if mode is Mode.SUM else x.mean(0), (x(), Mode.MEAN)


COUNTS = {"calls": 0}


@same
def side_effects() -> Any:
    class Counter:
        def __init__(self) -> None:
            self.seen: list[Any] = []
            self.last: Any = None

    counter = Counter()

    def call(x: torch.Tensor) -> Any:
        counter.seen.append(x.shape[0])
        counter.last = x * 2
        return counter.last + 1, len(counter.seen)

    return call, (x(),)


@same
def views_and_writes() -> Any:
    def write(x: torch.Tensor) -> Any:
        x[0] = 1
        x.mul_(2)
        return x.t(), x[1:]

    return write, (x(),)


@same
def indices_that_may_raise() -> Any:
    return lambda x, i: x[i] * 2, (x(), torch.tensor([0, 2]))


@same
def shared_parameters() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    if LATER:  # which an entry for distinct ones serves as well
        net[1].weight = net[0].weight
    return net, (x(),)


def _sizes(x: torch.Tensor, n: int = 3) -> Any:
    rows = x.shape[0]
    if rows * 2 > 6 and x.shape[1] % 2 == 0:
        x = x * rows
    return x.view(-1), x.t(), x.sum(0) + n, rows // 2, x.new_zeros(rows + 1, 2), x[1:, : rows - 2]


@same
def dynamic_sizes() -> Any:
    return _sizes, [(torch.randn(rows, 6),) for rows in chosen((5, 7), (8, 4))]


@same
def sizes_that_were_seen_to_change() -> Any:
    return lambda x: _sizes(x), [(torch.randn(rows, 6),) for rows in chosen((5, 7, 8), (6, 4))]


@same
def numbers_that_were_seen_to_change() -> Any:
    return lambda x, n: x.repeat(n, 1) * n, [(torch.randn(2, 2), n) for n in chosen((3, 4), (7, 5))]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


@same
def a_custom_function() -> Any:
    return lambda x: Doubled.apply(x) + 1, (x(),)


@functools.lru_cache
def cached(n: int) -> int:
    return n + 1


@same
def a_cached_function() -> Any:
    return lambda x: x * cached(2), (x(),)


# ---------------------------------------------------------------- the same, with graph breaks


def opaque(x: torch.Tensor) -> float:
    """What capture cannot see through: the graph ends before it."""
    return float(sorted([x.sum(), x.min()], key=lambda value: float(value))[0])


@same
def a_break() -> Any:
    def broken(x: torch.Tensor) -> Any:
        y = x.sin()
        opaque(y)
        return (y * 2).cos()

    return broken, (x(),)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    @passed_on
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        flambeau.compiler.graph_break()
        return y * 2

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = torch.tanh(self.scaled(x + 1))
        return x, self.inner(x)


@same
def breaks_below_a_module() -> Any:
    return Broken(), (x(),)


@same
@trained(lambda function, x: torch.autograd.grad(function(x)[1].sum(), function.parameters()))
def trained_with_breaks() -> Any:
    return Broken(), (x(),)


@same
def an_assumption_about_data() -> Any:
    return lambda x: x + 1 if x.sum() > 0 else x - 1, [(x().abs(),), (-x().abs(),)]


@changed
def code_behind_a_break() -> Any:
    if LATER:

        def broken(x: torch.Tensor) -> Any:
            y = x.sin()
            opaque(y)
            return y - 1
    else:

        def broken(x: torch.Tensor) -> Any:
            y = x.sin()
            opaque(y)
            return y + 1

    return broken, (x(),)


@changed
def a_function_behind_a_break() -> Any:
    function = chosen(torch.sin, torch.cos)

    def broken(x: torch.Tensor) -> Any:
        flambeau.compiler.graph_break()
        return function(x)

    return broken, (x(),)


# ---------------------------------------------------------------- the same, with a backward


def _gradients(function: Any, *arguments: Any) -> Any:
    """A loss, and its gradients to the arguments and parameters; those that were used."""
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    inputs = [x.clone().requires_grad_() for x in arguments]
    torch.manual_seed(2)
    loss = sum((out * out).sum() for out in _flat(function(*inputs)))
    return loss, *torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)


def _flat(results: Any) -> Any:
    return results if isinstance(results, tuple) else (results,)


def _some_gradients(function: Any, *arguments: Any) -> Any:
    """Gradients of results one by one, those of the second process in another order."""
    inputs = [x.clone().requires_grad_() for x in arguments]
    results = function(*inputs)
    kept = [
        torch.autograd.grad(result.sum(), inputs, retain_graph=True, allow_unused=True)
        for result in chosen(results[:1], results[::-1])
    ]
    return kept, torch.autograd.grad(sum(result.sum() for result in function(*inputs)), inputs)


def _second_derivatives(function: Any, *arguments: Any) -> Any:
    inputs = [x.clone().requires_grad_() for x in arguments]
    first = torch.autograd.grad(function(*inputs).sum(), inputs, create_graph=True)
    return first, torch.autograd.grad(sum((one * one).sum() for one in first), inputs)


def _with_a_write(function: Any, *arguments: Any) -> Any:
    """What the backward reads is written to: an error."""
    inputs = [x.clone().requires_grad_() for x in arguments]
    results = function(*inputs)
    with torch.no_grad():
        inputs[0].add_(1)
    try:
        return torch.autograd.grad(results.sum(), inputs)
    except RuntimeError as error:
        return str(error).partition("[")[0]


@same
@trained(_gradients)
def trained_module() -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(), nn.Linear(8, 2))
    return net, (x(),)


@same
@trained(_gradients)
def trained_statistics() -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    return net, (torch.randn(2, 3, 8, 8).double(),)


@same
@trained(_gradients)
def trained_views() -> Any:
    def views(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * y
        return z.t(), z[1:], x.view(-1)

    return views, (x(), x())


@same
@trained(_some_gradients)
def some_results() -> Any:
    def results(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).exp(), (x + y).sin().sum(0), y.log_softmax(-1)

    return results, (x(), x())


@same
@trained(_second_derivatives)
def second_derivatives() -> Any:
    return lambda x, y: (x * y).sin() * x.exp(), (x(), x())


@same
@trained(_with_a_write)
def a_write_before_the_backward() -> Any:
    return lambda x, y: (x * y * x).sin(), (x(), x())


class Named(typing.NamedTuple):
    first: torch.Tensor
    second: float = 2.5


@same
def a_named_tuple_that_is_made() -> Any:
    return lambda x: (Named(x.sin())._replace(second=3.0), x * Named(x).second), (x(),)


@same
def packed_sequences() -> Any:
    def pack(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
        return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0] * 2

    return pack, (torch.randn(3, 4, 2), torch.tensor([2, 4, 1]))


def _with_globals(**names: Any) -> Any:
    exec("def scaled(x): return x * SCALE", names)
    return names["scaled"]


@same
def a_function_with_globals_that_are_no_modules() -> Any:
    scaled = _with_globals(SCALE=2.0, __name__="nowhere")
    return lambda x: scaled(x) + 1, (x(),)


@same
def an_entry_that_a_factory_would_make() -> Any:
    def counts(x: torch.Tensor, seen: collections.defaultdict[str, Any]) -> Any:
        if len(seen) == 0:
            seen["a"]["b"] = x.sin()
            return x * 2
        return x + seen["a"]["b"]

    seen: Any = collections.defaultdict(dict)
    return counts, [(x(), seen), (x(), seen)]


# ---------------------------------------------------------------- the same, in pieces


def _rows(*counts: int) -> Any:
    return [(torch.randn(rows, 6),) for rows in counts]


@same
def elements_of_a_mask() -> Any:
    return lambda x: (x[x > 0].sin() * 2 + 1, x.cos().sum()), _rows(4, 4, *chosen((5, 7), (8, 9)))


@same
def no_element_of_a_mask() -> Any:
    def elements(x: torch.Tensor) -> Any:
        some = x[x > 0].sin()
        return some * 2 + 1, some.sum()

    signs = chosen((1, -1, 1), (-1, 1, -1))
    return elements, [(sign * torch.rand(3, 2),) for sign in signs]


@same
def positions_of_elements() -> Any:
    def positions(x: torch.Tensor) -> Any:
        rows, columns = (x.sin() > 0.5).nonzero(as_tuple=True)
        return (rows * 6 + columns).float().sin().relu(), x[rows].cos() * 2

    return positions, _rows(4, 9)


@same
def a_number_of_the_data() -> Any:
    def number(x: torch.Tensor) -> Any:
        n = int((x > 0).sum())
        y = x.sin() * n + 1
        return y.relu(), torch.arange(n).cos() * 2, x.abs().max().item() * 2

    return number, _rows(4, 7)


@same
def writes_around_a_mask() -> Any:
    def writes(x: torch.Tensor) -> Any:
        x.mul_(2).sub_(0.5)
        y = x[x[:, 0] > 0]
        x[x > 1] = 0.25
        y.add_(x.sum()).cos_()
        return y.sin() + 1, x.t()

    return writes, _rows(8, 8, 11)


@same
def tokens_of_experts() -> Any:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 3)
            self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = self.gate(x).softmax(-1).argmax(-1)
            result = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (tokens,) = torch.where(chosen == number)
                result.index_add_(0, tokens, functional.gelu(expert(x[tokens])) * 2)
            return result

    return Experts(), _rows(16, 16, 21)


@same
def a_branch_by_data() -> Any:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        y = torch.cond(y.sum() > 0, lambda y: y.exp() + 1, lambda y: (y * y).cos() - 1, (y,))
        return y.relu() * 3

    return branch, [(torch.rand(4, 6),), (-torch.rand(4, 6),)]


@same
def a_branch_in_a_branch() -> Any:
    def positive(y: torch.Tensor) -> torch.Tensor:
        z = y.sin() * 2
        z = torch.cond(z.max() > 1, lambda z: z.exp() + 1, lambda z: z.relu() - 1, (z,))
        return z.cos() * y

    def branch(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, positive, lambda y: (y * y).cos() - 1, (x,))
        return y.relu() * 3 + x

    return branch, [(torch.rand(4, 6),), (-torch.rand(4, 6),)]


@same
def a_loop_by_data() -> Any:
    def loop(x: torch.Tensor) -> Any:
        def goes_on(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return (x.sum() < 100) & (n < 9)

        def step(n: torch.Tensor, x: torch.Tensor) -> Any:
            return n + 1, x * 2 + x.abs()

        n, y = torch.while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x.abs() + 1))
        return n * 2 + 1, y.sin() + 1

    return loop, _rows(4, 4)


@same
def draws_of_the_host() -> Any:
    def draws(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2 + 1
        return y.cos() * random.random() + x.relu() * 3

    return draws, _rows(4, 4)


@same
def draws_of_a_seeded_generator() -> Any:
    def draws(x: torch.Tensor) -> torch.Tensor:
        np.random.seed(3)
        y = x.sin() * 2 + float(np.random.rand())
        return y.cos() * np.random.randint(5) + x.relu() * 3

    return draws, _rows(4, 4)


_SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=2.0)


@same
def a_context_variable() -> Any:
    return lambda x: x[x > 0].sin() * _SCALE.get(), _rows(4, 4)


@same
def a_setting_of_a_backend() -> Any:
    return lambda x: x.sin() * 2 if torch.backends.mkldnn.enabled else x, _rows(4, 4)


@same
def a_number_that_is_seen_to_change() -> Any:
    return lambda x, n: (x * n).sin() / (n + 1), [
        (x(), n) for n in chosen((0.5, 0.25, 3.0), (0.125, 2.0))
    ]


@same
def numbers_behind_a_break() -> Any:
    def numbers(x: torch.Tensor, n: float) -> Any:
        count, largest = int((x > 0).sum()), x.max().item()
        y = x.sin() * n
        opaque(x)
        return y[:count] * largest, x.new_ones(count) * n

    return numbers, [(x(), n) for n in chosen((0.5, 0.25, 3.0), (0.125, 2.0))]


@same
def a_mask_behind_a_break() -> Any:
    def masked(x: torch.Tensor) -> Any:
        y = x[x > 0].sin() * 2
        opaque(x)
        return (y + 1).cos() * 2

    return masked, _rows(4, 5)


@same
@trained(_gradients)
def trained_elements() -> Any:
    def elements(x: torch.Tensor, w: torch.Tensor) -> Any:
        some = (x * w)[x > 0]
        return some.sin() * 2 + some.exp(), (x.cos() * w).sum(0)

    return elements, [(torch.randn(rows, 6), torch.randn(6)) for rows in (4, *chosen((5,), (9, 7)))]


@same
@trained(_gradients)
def trained_experts() -> Any:
    return tokens_of_experts()


@same
@trained(_gradients)
def trained_branch() -> Any:
    return a_branch_by_data()


@same
@trained(_second_derivatives)
def second_derivatives_of_elements() -> Any:
    return lambda x: (x[x > 0].sin() * 2).exp(), _rows(4, 4)


# ---------------------------------------------------------------- the same, dynamic with a backward


@same
@trained(_gradients)
def trained_sizes() -> Any:
    def sizes(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = functional.layer_norm(x @ w, (6,)).view(-1, 3)
        return y.softmax(0) * x.shape[0], x[1:].cumsum(0), (y * y).mean()

    return sizes, [(torch.randn(n, 6), torch.randn(6, 6)) for n in chosen((5, 7), (8, 4, 6))]


@same
@trained(_gradients)
def trained_sizes_that_were_seen_to_change() -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(), nn.Linear(8, 2))
    return net, _rows(*chosen((5, 7, 8), (6, 4)))


@same
@trained(_some_gradients)
def some_results_of_sizes() -> Any:
    def results(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).exp(), (x + y).sin().sum(0), y.log_softmax(-1)

    return results, [(torch.randn(n, 6), torch.randn(n, 6)) for n in (5, 7)]


@same
@trained(_second_derivatives)
def second_derivatives_of_sizes() -> Any:
    return lambda x, y: (x * y).sin() * x.exp(), [
        (torch.randn(n, 6), torch.randn(n, 6)) for n in chosen((5, 7), (8, 3))
    ]


@same
@trained(_with_a_write)
def a_write_before_the_backward_of_sizes() -> Any:
    return lambda x, y: (x * y * x).sin(), [(torch.randn(n, 6), torch.randn(n, 6)) for n in (5, 7)]


@same
@trained(lambda function, x, n: torch.autograd.grad(function(x.requires_grad_(), n).sum(), x))
def trained_with_a_number_that_changes() -> Any:
    return lambda x, n: (x * n).sin().exp(), [
        (x(), n) for n in chosen((0.5, 0.25, 3.0), (0.125, 2.0))
    ]


@same
@trained(_gradients)
def a_trained_number() -> Any:
    return lambda x: (x[:, : x.shape[0]] * x.shape[0]).sin(), _rows(4, 5)


@same
@trained(_gradients)
def a_bound_that_a_later_one_implies() -> Any:
    def joined(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, y]).view(-1, 2, 4).sum(1) * x.shape[0] + (y.shape[0] > 3)

    return joined, [(torch.randn(n, 4), torch.randn(4, 4)) for n in (6, 8)]


IN_PIECES = (
    elements_of_a_mask, no_element_of_a_mask, positions_of_elements, a_number_of_the_data,
    writes_around_a_mask, tokens_of_experts, a_branch_by_data, a_branch_in_a_branch,
    a_loop_by_data, draws_of_the_host, trained_elements, trained_experts, trained_branch,
    second_derivatives_of_elements, draws_of_a_seeded_generator, a_context_variable,
)  # fmt: skip
"""Programs that are one graph, in pieces, where graphs must not break."""

for program in IN_PIECES:
    name = f"{program.__name__}_in_one_graph"
    SAME[name], OPTIONS[name] = program, {"fullgraph": True}
    if program.__name__ in TRAINED:
        TRAINED[name] = TRAINED[program.__name__]

for name in (
    "trained_sizes", "some_results_of_sizes", "second_derivatives_of_sizes",
    "a_write_before_the_backward_of_sizes", "a_trained_number", "a_bound_that_a_later_one_implies",
):  # fmt: skip
    OPTIONS[name] = {"dynamic": True}


# ---------------------------------------------------------------- changed for the second


@changed
@trained(lambda function, x, y: (y := function(x, y), y.requires_grad and y.sum().backward()))
def another_input_that_requires_grad() -> Any:
    inputs = [x(), x()]
    inputs[chosen(0, 1)].requires_grad_()
    return lambda x, y: x.sin() * y.cos(), tuple(inputs)


@changed
@trained(_gradients)
def another_slope() -> Any:
    slope = chosen(0.1, 0.3)
    return lambda x: functional.leaky_relu(x, slope), (x(),)


@changed
def closure_of_another_value() -> Any:
    scale = chosen(1.5, 2.5)
    return lambda x: x * scale, (x(),)


@changed
def closure_of_another_function() -> Any:
    function = chosen(torch.sin, torch.cos)
    return lambda x: function(x), (x(),)


SCALE = chosen(2.0, 3.0)


@changed
def another_global() -> Any:
    return lambda x: x * SCALE, (x(),)


if LATER:

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x - 1
else:

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x + 1


@changed
def other_code_of_the_same_name() -> Any:
    return lambda x: helper(x), (x(),)


def _method(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(f"def f(x): return x {text}", {}, names)
    return names["f"]


@changed
def other_code_of_the_same_lines() -> Any:
    return _method(chosen("* 2", "* 4")), (x(),)


@changed
def other_defaults() -> Any:
    def call(x: torch.Tensor, scale: float = chosen(2.0, 4.0)) -> torch.Tensor:
        return x * scale

    return (lambda x: call(x)), (x(),)


class Key:
    """Its hash and its comparison are native code's to call; both hold a number."""

    def _compares(held: float) -> Any:  # type: ignore[misc]
        return lambda self, value: type(value) is not int or held == 2.0

    __eq__ = _compares(chosen(2.0, 3.0))  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1


@changed
def a_number_among_globals_that_are_no_modules() -> Any:
    scaled = _with_globals(SCALE=chosen(2.0, 3.0), __name__="nowhere")
    return lambda x: scaled(x) - 1, (x(),)


class Other(typing.NamedTuple):
    first: torch.Tensor
    second: float = chosen(2.5, 3.5)


@changed
def another_default_of_a_named_tuple() -> Any:
    return lambda x: x * Other(x).second, (x(),)


@changed
def a_number_that_a_method_holds() -> Any:
    return lambda x, key: x * {1: 5}.get(key, 2), (x(), Key())


class Base:
    def scale(self) -> float:
        return 2.0


class Derived(Base):
    factor = 3.0

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * super().scale() * self.factor


class Patched(Derived):
    pass


class WithAttribute(Derived):
    factor = chosen(3.0, 5.0)


class Between(Base):
    if LATER:

        def scale(self) -> float:
            return 7.0


class Below(Between):
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * super().scale()


@torch.library.custom_op("flambeau_tests::ruled", mutates_args=())
def ruled(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@ruled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_FACTOR = chosen(2.0, 3.0)


def _by_factor(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * _FACTOR


ruled.register_autograd(lambda ctx, gradient: _by_factor(gradient))


@trained(gradients)
@changed
def another_rule_of_an_operator() -> Any:
    return lambda x: torch.ops.flambeau_tests.ruled(x.sin()), (x().requires_grad_(),)


@changed
def a_patched_method() -> Any:
    if LATER:
        Patched.apply = lambda self, x: x - 100  # type: ignore[method-assign, assignment]
    thing = Patched()
    return lambda x: thing.apply(x), (x(),)


@changed
def another_class_attribute() -> Any:
    thing = WithAttribute()
    return lambda x: thing.apply(x), (x(),)


@changed
def a_method_of_a_class_between() -> Any:
    thing = Below()
    return lambda x: thing.apply(x), (x(),)


class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def corners(self) -> int: ...


class Circle(*chosen((Shape,), ())):  # type: ignore[misc]
    corners = 0


@changed
def another_base_class() -> Any:
    circle = Circle()
    return lambda x: x + 1 if isinstance(circle, Shape) else x - 1, (x(),)


class Size(enum.Enum):
    BASE = chosen(1, 2)


@changed
def another_value_of_an_enumeration() -> Any:
    return lambda x: x * Size.BASE.value, (x(),)


@changed
def an_instance_method() -> Any:
    net = nn.Linear(6, 6)
    if LATER:
        net.forward = lambda x: x * 0  # type: ignore[method-assign]
    return net, (x(),)


@changed
def parameters_of_another_shape() -> Any:
    return nn.Linear(6, chosen(4, 5)), (x(),)


@changed
def parameters_of_another_type() -> Any:
    dtype = chosen(torch.float32, torch.float64)
    return nn.Linear(6, 4, dtype=dtype), (x().to(dtype),)


@changed
def parameters_without_gradients() -> Any:
    return nn.Linear(6, 4).requires_grad_(chosen(True, False)), (x(),)


@changed
def a_strided_input() -> Any:
    return lambda x: x.contiguous() + 1, (chosen(torch.randn(4, 6), torch.randn(6, 4).t()),)


@changed
def the_same_input_twice() -> Any:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    first = x()
    return write, (first, chosen(x(), first))


@changed
def inputs_that_share_memory() -> Any:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    base = torch.randn(12)
    return write, (base[:6], chosen(torch.randn(6), base[3:9]))


@changed
def a_forward_hook() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    if LATER:
        net[1].register_forward_hook(lambda module, args, output: output * 10)
    return net, (x(),)


@changed
def training() -> Any:
    net = nn.BatchNorm1d(6)
    return net.train(chosen(False, True)), (x(),)


@changed
def a_flag_of_one_child() -> Any:
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6)).eval()
    net[0].train(chosen(False, True))
    return net, (x(),)


@changed
def another_number() -> Any:
    return lambda x, n: x * n, (x(), chosen(2, 3))


@changed
def a_bool_for_a_number() -> Any:
    return lambda x, n: x * n if isinstance(n, bool) else x - n, (x(), chosen(1, True))


@changed
def the_other_zero() -> Any:
    return lambda x, n: x * math.copysign(1.0, n), (x(), chosen(0.0, -0.0))


@changed
def another_key() -> Any:
    return lambda x, d: x * d[next(iter(d))], (x(), chosen({"a": 2, "b": 3}, {"b": 3, "a": 2}))


@changed
def the_value_of_a_context_variable() -> Any:
    _SCALE.set(chosen(2.0, 3.0))
    return lambda x: x.sin() * _SCALE.get(), (x(),)


def _with(name: str, context: Callable[[], Any], program: Callable[..., Any]) -> None:
    CHANGED[name] = lambda: (program, (x(),))
    SURROUNDED[name] = context


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _other_threads() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(count + 1)
    yield
    torch.set_num_threads(count)


def _patched(holder: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(holder, name, value)


def _of_torch(x: torch.Tensor) -> torch.Tensor:
    return functional.relu6(x * 10)


_with("function_of_torch", _patched(functional, "relu6", functional.relu), _of_torch)
_with("function_of_torch_in_c", _patched(torch, "exp2", torch.exp), lambda x: torch.exp2(x))
_with(
    "programs_function_for_torchs",
    _patched(torch, "rsqrt", lambda x: x * 0),
    lambda x: torch.rsqrt(x.abs() + 1),
)
_with(
    "method_of_tensors", _patched(torch.Tensor, "norm", lambda self: self * 0), lambda x: x.norm()
)
_with(
    "view_of_tensors", _patched(torch.Tensor, "T", property(lambda self: self * 3)), lambda x: x.T
)
_with(
    "attribute_of_tensors",
    _patched(torch.Tensor, "itemsize", property(lambda self: 3)),
    lambda x: x * x.itemsize,
)
_with(
    "method_of_a_module_of_torch",
    _patched(nn.Softsign, "forward", lambda self, x: x * 5),
    nn.Softsign(),
)
_with(
    "default_of_torch",
    _patched(functional.hardtanh, "__defaults__", (-0.1, 1.0, False)),
    lambda x: functional.hardtanh(x),
)
_with(
    "called_by_a_function_of_torch",
    _patched(functional, "softmin", functional.softmax),
    nn.Softmin(dim=0),
)
_with(
    "function_of_the_standard_library",
    _patched(functools, "reduce", lambda function, items: items[0]),
    lambda x: functools.reduce(lambda a, b: a * b, [x, x + 1, x + 2]),
)
_with(
    "global_hook_of_modules",
    lambda: register_module_forward_hook(lambda module, args, output: output * 10),
    nn.Sequential(nn.Softplus()),
)
_with("autocast", lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x.t())
_with("grad_mode", torch.enable_grad, lambda x: (x + 1).requires_grad)
_with("inference_mode", torch.inference_mode, lambda x: x + 1)
_with("default_dtype", _default_dtype, lambda x: x.sum() + torch.ones(()))
_with("deterministic", _deterministic, lambda x: x.cumsum(0) + 1)
_with("threads", _other_threads, lambda x: x.sum() + torch.get_num_threads())
_with("default_device", lambda: torch.device("meta"), lambda x: torch.ones(2))


@changed
def code_below_a_mask() -> Any:
    function = chosen(lambda x: x.sin() + 1, lambda x: x.cos() - 1)
    return lambda x: function(x[x > 0]) * 2, (x(),)


@changed
def a_constant_beside_a_mask() -> Any:
    scale = chosen(2.0, 3.0)
    return lambda x: (x[x > 0] * scale).sin(), (x(),)


@changed
def another_branch_by_data() -> Any:
    yes = chosen(lambda y: y.exp() + 1, lambda y: y.sin() - 1)
    return lambda x: torch.cond(x.sum() > 0, yes, lambda y: y.cos() * 2, (x.abs() + 1,)), (x(),)


@changed
@trained(_gradients)
def code_of_trained_sizes() -> Any:
    function = chosen(lambda x: x.sin() * x.shape[0], lambda x: x.cos() * x.shape[0])
    return lambda x: function(x.sigmoid()), _rows(5, 7, 8)


@changed
@trained(_gradients)
def a_module_below_a_mask() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), chosen(nn.GELU(), nn.SiLU()))

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x[x[:, 0] > 0]) * 2

    return Masked(), _rows(9, 9)


_with(
    "function_of_torch_below_a_mask",
    _patched(functional, "relu6", functional.relu),
    lambda x: functional.relu6(x[x > 0] * 10) + 1,
)
_with(
    "function_of_torch_in_c_below_a_mask",
    _patched(torch, "exp2", torch.exp),
    lambda x: torch.exp2(x[x > 0]) * 2,
)
_with(
    "autocast_of_a_mask",
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda x: x[x[:, 0] > -9] @ x.t(),
)

for name, options in {
    "option_of_the_compiler": {"options": {"numerics": "strict"}},
    "option_of_capture": {"options": {"speculate": False}},
    "all_sizes_dynamic": {"dynamic": True},
}.items():
    CHANGED[name] = lambda: (lambda x: torch.exp(x) + 2, (x(),))
    OPTIONS[name] = options


# ---------------------------------------------------------------- of one process only


@of_the_process
def items_of_a_set() -> Any:
    names = set("abcdefg")
    return lambda x: x + 0 * sum(at * ord(name) for at, name in enumerate(names)), (x(),)


@of_the_process
def a_list_of_a_set() -> Any:
    names = set("abcdefg")
    return lambda x: x + 0 * ord(list(names).pop()), (x(),)


@of_the_process
def a_text_of_a_set() -> Any:
    names = set("abcdefg")
    return lambda x: x + 0 * ord("".join(names)[0]), (x(),)


# ---------------------------------------------------------------- running


def outcome(name: str, program: Program) -> str:
    """What became of the first call, compared with eager on a second set of equal objects."""
    torch.manual_seed(0)
    expected, expected_arguments = program()
    torch.manual_seed(0)
    function, arguments = program()
    surroundings = SURROUNDED.get(name, contextlib.nullcontext) if LATER else contextlib.nullcontext
    options = OPTIONS.get(name, {}) if LATER or name in SAME else {}
    use = TRAINED.get(name, lambda function, *arguments: function(*arguments))
    compiled = flambeau.compile(function, **options)
    calls, expected_calls = (
        given if isinstance(given, list) else [given] for given in (arguments, expected_arguments)
    )
    with surroundings():
        for given, wanted in zip(2 * calls, 2 * expected_calls, strict=True):
            random.seed(1)
            found = use(compiled, *given)
            random.seed(1)
            compare(found, use(expected, *wanted))
            compare(given, wanted)
    state = state_of(getattr(compiled, "_compiled", compiled))
    kinds = [event.kind for event in state.events]
    stored = [event.entry.stored for event in state.events if event.entry is not None]
    graphs = report_of(compiled).graphs
    stored += [info.stored for graph in graphs for _, info in graph.piece_entries()]
    return f"{' '.join(kinds)}: {'; '.join(stored)}"


def compare(found: Any, expected: Any) -> None:
    """Equal in types, values, strides and flags."""
    assert type(found).__qualname__ == type(expected).__qualname__, (type(found), type(expected))
    if isinstance(found, torch.Tensor):
        assert found.stride() == expected.stride()
        assert found.requires_grad == expected.requires_grad
        assert found.is_inference() == expected.is_inference()
        torch.testing.assert_close(found, expected)
    elif isinstance(found, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    elif isinstance(found, dict):
        assert list(found) == list(expected)
        compare(list(found.values()), list(expected.values()))
    elif isinstance(found, Pair):
        compare(vars(found), vars(expected))
    else:
        assert found == expected or isinstance(found, Mode)


def main() -> None:
    results = {}
    programs = SAME | CHANGED | OF_THE_PROCESS
    names = sys.argv[2:]
    if names and names[0].startswith("--device="):
        torch.set_default_device(names.pop(0).partition("=")[2])
    for name in names or programs:
        program = programs[name]
        try:
            with torch.set_grad_enabled(name in TRAINED):
                results[name] = outcome(name, program)
        except Exception as error:  # for the test to show
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
