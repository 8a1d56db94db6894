"""Inference mode: entered and left inside a compiled function, as a decorator, around its calls,
and where a graph breaks in it.

What a tensor is to autograd (an inference tensor or not, a leaf or not, with a history or not) is
compared with eager's, and so are errors.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._ops import OpOverload
from torch.nn import functional as F

import flambeau
from flambeau.interop_dynamo import flambeau_backend
from flambeau.report import report_of
from flambeau_prims import operator_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKENDS = ("eager", "aot_eager", "cudagraphs", "inductor")
Program = "Callable[[torch.Tensor, torch.Tensor], Any]"


def flags(value: Any) -> Any:
    """What a result is to autograd, in the place of its tensors."""
    if isinstance(value, torch.Tensor):
        history = (value.is_leaf, value.grad_fn is not None)
        return value.shape, value.requires_grad, value.is_inference(), *history
    return [flags(item) for item in value] if isinstance(value, (tuple, list)) else value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def outcome(
    program: Callable[..., Any], x: torch.Tensor, w: torch.Tensor, *, inference: bool
) -> tuple[Any, list[torch.Tensor]]:
    """What a call gives, raises, leaves on and writes; then its values and the gradient by `w`."""
    x, w = x.clone(), w.clone().requires_grad_()
    with torch.inference_mode() if inference else contextlib.nullcontext():
        try:
            result = program(x, w)
        except IndexError as error:
            result = type(error)
        except RuntimeError as error:
            result = str(error).partition("\n")[0]
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    found = list(tensors(result))
    with_history = [tensor for tensor in found if tensor.grad_fn is not None]
    gradients = ()
    if with_history:
        total = torch.stack([tensor.sum() for tensor in with_history]).sum()
        gradients = torch.autograd.grad(total, w)
    return (flags(result), modes), [x, *found, *gradients]


def block(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x @ w).relu()
    with torch.inference_mode():
        z = (x @ w).sin() + 1
        views = x.view(-1), y[0]
        product = z * y
        asked = [t.is_inference() for t in (z, *views)], [t.requires_grad for t in (z, *views)]
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y * 2, z, views, product, asked, modes, torch.is_inference_mode_enabled()


@torch.inference_mode()
def decorated(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    y += 1
    x.add_(1)
    return y.relu(), x


@torch.inference_mode
def decorated_plainly(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x @ w).cos() + 2


@torch.no_grad()
def turned_off(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode(False):
        return (x @ w).sin(), torch.is_grad_enabled()


def nested(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x @ w
        with torch.inference_mode(False):
            u = (x @ w).sin()
            enabled = torch.is_grad_enabled()
        with torch.enable_grad():
            z = y + 1
    return y, u, z, y.clone() * w, enabled


def saved_for_backward(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = (x @ w).sin()
    return y * w


def written_outside(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = (x @ w).sin()
    y.add_(1)
    return y


def error_handled(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = (x @ w).sin()
    try:
        y.add_(1)
    except RuntimeError as error:
        return y.clone() + 1, str(error)[:40]


def raises_inside(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    try:
        with torch.inference_mode():
            y = y.mean() + 1
            raise ValueError
    except ValueError:
        return y.clone() + x, torch.is_inference_mode_enabled()


SHARED = torch.inference_mode()


def shared_context(x: torch.Tensor, w: torch.Tensor) -> Any:
    with SHARED:
        y = (x @ w + 1).sin()
    return y, torch.is_inference_mode_enabled()


def fails_as_it_runs(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = (x @ w).sin()
        return y[torch.full((1,), 7)]


def break_inside(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = (x @ w).sin() + 1
        torch._dynamo.graph_break()
        z = y.cos() * 2
    return y, z, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), (x @ w).sin()


PROGRAMS: list[Any] = [
    block,
    decorated,
    decorated_plainly,
    turned_off,
    nested,
    saved_for_backward,
    written_outside,
    error_handled,
    raises_inside,
    shared_context,
    fails_as_it_runs,
    break_inside,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inference_mode_inside(program: Callable[..., Any], backend: str) -> None:
    compiled = flambeau.compile(program, backend=backend, fullgraph=program is not break_inside)
    for inference in (False, False, True, False):
        x, w = torch.randn(3, 3), torch.randn(3, 3)
        want, values = outcome(program, x, w, inference=inference)
        got, found = outcome(compiled, x, w, inference=inference)
        assert got == want
        for tensor, expected in zip(found, values, strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-5)


def mixed(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    x.mul_(2)
    view = x.view(-1)
    view.add_(1)
    return y, view, y[0], x, [t.is_inference() for t in (x, y, view)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_made_in_inference_mode(backend: str) -> None:
    compiled = flambeau.compile(mixed, backend=backend, fullgraph=True)
    w = torch.randn(3, 3, requires_grad=True)
    for made_inside in (False, True, False):
        for called_inside in (True, False):
            results = []
            torch.manual_seed(0)
            with torch.inference_mode(made_inside):
                inputs = [torch.arange(9.0).view(3, 3) for _ in range(2)]
            for program, x in zip((mixed, compiled), inputs, strict=True):
                with torch.inference_mode(called_inside):
                    try:
                        results.append(program(x, w))
                    except RuntimeError as error:
                        results.append(str(error)[:60])
            want, got = results
            assert flags(got) == flags(want)
            for tensor, expected in zip(tensors(got), tensors(want), strict=True):
                torch.testing.assert_close(tensor.detach(), expected.detach())


def test_an_entry_serves_one_mode() -> None:
    compiled = flambeau.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    for inference in (False, True, False, True):
        with torch.inference_mode(inference):
            assert compiled(torch.ones(2)).is_inference() is inference
    assert len(flambeau.explain(compiled).graphs) == 2


def test_as_a_backend_of_torch_compile() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            y = (x.sin() + 1).cos()
        return y, (x * 2).exp()

    x = torch.randn(3)
    compiled = torch.compile(program, backend=flambeau_backend)
    assert flags(list(compiled(x))) == flags(list(program(x)))
    assert not torch.is_inference_mode_enabled()


# Operators that consist of others come to the tracer whole in inference mode.


def results_that_are_arguments(x: torch.Tensor, w: torch.Tensor) -> Any:
    kept = F.dropout(x.sigmoid(), 0.0, training=True)
    turned = torch.einsum("ij->ji", x.exp())
    typed = x.cos().type_as(x)
    summed = x.sin().sum_to_size(x.shape)
    later = [(each @ w).sum() for each in (kept, turned.t(), typed, summed)]
    return [kept @ kept.t() + 1, kept.t(), turned, typed, summed, *later]


def results_that_are_inputs(x: torch.Tensor, w: torch.Tensor) -> Any:
    kept = F.dropout(x, 0.0, training=True)
    typed = w.type_as(x)
    kept.add_(1)
    return kept, typed, torch.einsum("ij->ji", w), x * 2


def layers(x: torch.Tensor, w: torch.Tensor) -> Any:
    heads = x.view(1, 2, -1, x.shape[1])
    return (
        F.linear(x, w, w[0]),
        F.scaled_dot_product_attention(heads, heads, heads),
        F.max_pool2d(heads, 2),
        F.conv2d(heads, w[None, None, :3, :3].expand(4, 2, 3, 3)),
        F.layer_norm(x, x.shape[1:]),
        torch.tensordot(x, w, 1),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("given", [False, True], ids=["tensors", "inference tensors"])
@pytest.mark.parametrize("program", [results_that_are_arguments, results_that_are_inputs, layers])
def test_operators_that_consist_of_others(program: Any, given: bool, dynamic: bool) -> None:
    compiled = flambeau.compile(program, fullgraph=True, dynamic=dynamic)
    for rows in (8, 16):
        with torch.inference_mode(given):
            x, w = torch.randn(rows, 8), torch.randn(8, 8)
        runs = []
        for call in (program, compiled):
            own = x.clone()
            with torch.inference_mode():
                found = [own, *call(own, w)]
            places = [each.data_ptr() for each in (own, w)]
            shared = [each.data_ptr() in places for each in found]
            runs.append((flags(found), [each.stride() for each in found], shared, found))
        (*facts, ours), (*expected, theirs) = runs
        assert facts == expected
        torch.testing.assert_close(ours, theirs)
    for graph in report_of(compiled).graphs:
        for functional in graph.functional.values():
            overloads = (node.op for node in functional.nodes if type(node.op) is OpOverload)
            assert not [str(op) for op in overloads if operator_facts.facts(op).composed]


def test_a_size_that_an_operator_computes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.div(x.shape[0], 2, rounding_mode="trunc"), -1) + 1

    compiled = flambeau.compile(program, fullgraph=True, dynamic=True)
    for rows in (6, 8):
        with torch.inference_mode():
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), program(x))


CAST: dict[str, Callable[[torch.Tensor], Any]] = {
    "einsum": lambda a: torch.einsum("ij,jk->ik", a, a),
    "tensordot": lambda a: torch.tensordot(a, a, 1) + a.sum(),
    "linear": lambda a: F.linear(a, a, a[0]),
    "bilinear": lambda a: F.bilinear(a, a, a[None]),
    "attention": lambda a: F.scaled_dot_product_attention(*[a[None, None]] * 3),
    "convolution": lambda a: F.conv2d(a[None, None], a[None, None, :3, :3]),
    "similarity": lambda a: F.cosine_similarity(a, a @ a),
    "loss": lambda a: F.cross_entropy(a @ a, torch.arange(8)),
    "norm": lambda a: F.layer_norm(a @ a, (8,)),
    "multi_dot": lambda a: torch.linalg.multi_dot([a, a, a]),
    "lstm": lambda a: LSTM(a[None])[0],
    "encoder": lambda a: ENCODER(a[None]),
}
LSTM = torch.nn.LSTM(8, 4, batch_first=True, bidirectional=True).eval()
ENCODER = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
"""In evaluation one operator, whose kernel calls others."""


def result_or_error(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """The result, or the error's words."""
    try:
        return function(x)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("given", [False, True], ids=["tensors", "inference tensors"])
@pytest.mark.parametrize("name", CAST)
def test_autocast_applies_to_the_parts_of_operators(name: str, given: bool) -> None:
    program = CAST[name]
    with torch.inference_mode(given):
        x = torch.randn(8, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        compiled = flambeau.compile(program, fullgraph=name != "encoder")
        with mode(), torch.autocast("cpu", torch.bfloat16):
            ours, theirs = result_or_error(compiled, x), result_or_error(program, x)
        if isinstance(theirs, str):  # oneDNN has no LSTM in bfloat16 for processors without AVX-512
            assert ours == theirs
            continue
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)
