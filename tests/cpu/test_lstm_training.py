"""LSTMs in training on a CPU, whose layers kernels of our own compute, forward and backward:
results and gradients are as near to float64's as eager's.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

Shapes = tuple[tuple[int, ...], ...]


def plain(model: nn.Module, x: torch.Tensor) -> Any:
    return model(x)


@dataclass(frozen=True)
class Case:
    """A program, the shapes of its tensors in each call, and the names of frozen parameters."""

    module: Callable[[], nn.Module]
    calls: tuple[Shapes, ...]
    program: Callable[..., Any] = plain
    frozen: str = "no parameter"
    dynamic: bool | None = None


def transposed_weights(model: nn.Module, x: torch.Tensor) -> Any:
    """Weights whose columns have no gaps, as the graph computes them."""
    weights = {
        name: weight * 0.5 if weight.ndim == 1 else (weight.t() * 0.5).contiguous().t()
        for name, weight in model.named_parameters()
    }
    return torch.func.functional_call(model, weights, (x,))


def dropped_state(model: nn.Module, x: torch.Tensor) -> Any:
    output, (h, c) = model(x)
    return output.sin(), h.detach(), c


CASES = {
    "one_layer": Case(lambda: nn.LSTM(6, 20), (((7, 3, 6),), ((1, 1, 6),), ((4, 50, 6),))),
    "one_unit": Case(lambda: nn.LSTM(2, 1), (((3, 2, 2),),)),
    "odd": Case(lambda: nn.LSTM(3, 17, bias=False), (((3, 2, 3),),)),
    "wide": Case(lambda: nn.LSTM(5, 312), (((2, 3, 5),),)),
    "without_a_batch": Case(lambda: nn.LSTM(6, 20), (((7, 6),),)),
    "no_rows": Case(lambda: nn.LSTM(6, 20), (((7, 0, 6),), ((7, 1, 6),))),
    "batch_first": Case(
        lambda: nn.LSTM(6, 20, 2, batch_first=True, bidirectional=True), (((3, 7, 6),),)
    ),
    "no_bias": Case(lambda: nn.LSTM(6, 17, 3, bias=False, bidirectional=True), (((3, 7, 6),),)),
    "projected": Case(lambda: nn.LSTM(6, 20, 2, proj_size=5), (((3, 7, 6),),)),
    "states": Case(
        lambda: nn.LSTM(6, 20, 2), (((7, 3, 6), (2, 3, 20), (2, 3, 20)),),
        lambda model, x, h, c: model(x, (h, c)),
    ),
    "expanded_states": Case(
        lambda: nn.LSTM(6, 20), (((7, 3, 6), (1, 1, 20)),),
        lambda model, x, h: model(x, (h.expand(1, 3, 20), h.expand(1, 3, 20))),
    ),
    "states_of_the_input": Case(
        lambda: nn.LSTM(20, 20), (((7, 3, 20),),), lambda model, x: model(x, (x[:1], x[1:2]))
    ),
    "last_hidden_state": Case(
        lambda: nn.LSTM(6, 20, 2), (((7, 3, 6),),), lambda model, x: model(x)[1][0]
    ),
    "last_cell_state": Case(
        lambda: nn.LSTM(6, 20, 2), (((7, 3, 6),),), lambda model, x: model(x)[1][1]
    ),
    "last_output": Case(
        lambda: nn.LSTM(6, 20, batch_first=True), (((7, 3, 6),),),
        lambda model, x: model(x)[0][:, -1],
    ),
    "detached_state": Case(lambda: nn.LSTM(6, 20), (((7, 3, 6),),), dropped_state),
    "strided_input": Case(
        lambda: nn.LSTM(6, 20), (((3, 6, 14),),), lambda model, x: model(x.permute(2, 0, 1)[::2])
    ),
    "used_twice": Case(
        lambda: nn.LSTM(20, 20), (((7, 3, 20),),), lambda model, x: model(*model(x))
    ),
    "dropout": Case(lambda: nn.LSTM(6, 20, 3, dropout=0.5), (((7, 3, 6),),)),
    "checkpointed": Case(
        lambda: nn.LSTM(6, 20), (((7, 3, 6),),),
        lambda model, x: checkpoint(lambda y: model(y)[0].sin(), x, use_reentrant=False),
    ),
    "input_without_gradient": Case(
        lambda: nn.LSTM(6, 20, 2), (((7, 3, 6),),), lambda model, x: model(x.detach())
    ),
    "frozen_recurrence": Case(
        lambda: nn.LSTM(6, 20, 2, bidirectional=True), (((7, 3, 6),),), frozen="weight_hh"
    ),
    "frozen_layer": Case(lambda: nn.LSTM(6, 20, 2), (((7, 3, 6),),), frozen="_l0"),
    "frozen": Case(lambda: nn.LSTM(6, 20, 2), (((7, 3, 6),),), frozen=""),
    "computed_weights": Case(lambda: nn.LSTM(20, 20), (((7, 3, 20),),), transposed_weights),
    "dynamic": Case(
        lambda: nn.LSTM(6, 20, 2),
        (((7, 3, 6),), ((5, 3, 6),), ((5, 2, 6),), ((9, 1, 6),)),
        dynamic=True,
    ),
}  # fmt: skip


def results(
    case: Case, function: Callable[..., Any], model: nn.Module, tensors: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The results, and the gradients of tensors and parameters, for a loss of all results."""
    model.zero_grad()
    for tensor in tensors:
        tensor.requires_grad_()
    torch.manual_seed(5)
    outputs = pytree.tree_leaves(function(model, *tensors))
    torch.manual_seed(7)
    weights = [torch.randn(out.shape).to(out.dtype) for out in outputs]
    losses = [
        (out * weight).sum()
        for out, weight in zip(outputs, weights, strict=True)
        if out.requires_grad
    ]
    sum(losses[1:], losses[0]).backward()  # type: ignore[no-untyped-call]
    gradients = [leaf.grad for leaf in (*tensors, *model.parameters())]
    return [*(out.detach() for out in outputs), *gradients]


@pytest.mark.parametrize("name", CASES)
def test_training(name: str) -> None:
    case = CASES[name]
    module = case.module()
    for parameter_name, parameter in module.named_parameters():
        parameter.requires_grad_(case.frozen not in parameter_name)
    twin, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    compiled = flambeau.compile(case.program, fullgraph=True, dynamic=case.dynamic)
    for shapes in case.calls:
        tensors = [torch.randn(shape) for shape in shapes]
        found = results(case, compiled, module, [x.clone() for x in tensors])
        want = results(case, case.program, twin, [x.clone() for x in tensors])
        best = results(case, case.program, exact, [x.double() for x in tensors])
        for ours, theirs, true in zip(found, want, best, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is None or theirs is None or true is None:
                continue
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
            if ours.numel():
                size = max(1.0, true.abs().max().item())
                assert (ours - true).abs().max() <= 2 * (theirs - true).abs().max() + 1e-6 * size


def library_calls(module: nn.Module, **options: Any) -> set[str]:
    """Which calls of oneDNN's layers a training step makes."""
    compiled = flambeau.compile(module, fullgraph=True, **options)
    x = torch.randn(7, 3, module.input_size, dtype=next(module.parameters()).dtype)
    compiled(x)[0].sum().backward()
    with torch.profiler.profile() as profile:
        compiled(x)[0].sum().backward()
    names = {event.key for event in profile.key_averages()}
    return {name for name in names if "mkldnn_rnn_layer" in name and name.startswith("aten::")}


def test_what_calls_the_library() -> None:
    assert not library_calls(nn.LSTM(6, 20, 2, bidirectional=True))
    strict = library_calls(nn.LSTM(6, 20), options={"numerics": "strict"})
    assert strict == {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_no_farther_from_exact_gradients_than_eager(dtype: torch.dtype) -> None:
    module = nn.LSTM(6, 20).to(dtype)
    exact = copy.deepcopy(module).double()
    x = torch.randn(7, 3, 6, dtype=dtype)
    gradients = []
    for function, own in (
        (flambeau.compile(module, fullgraph=True), module), (module, module), (exact, exact),
    ):  # fmt: skip
        own.zero_grad()
        function(x.to(next(own.parameters()).dtype))[0].float().square().sum().backward()
        gradients.append([parameter.grad.double() for parameter in own.parameters()])
    by_onednn = dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for ours, theirs, wanted in zip(*gradients, strict=True):
        if by_onednn or dtype is torch.float64:  # by the same kernels
            torch.testing.assert_close(ours.to(dtype), theirs.to(dtype))
        errors = (ours - wanted).norm(), (theirs - wanted).norm()
        assert errors[0] <= 1.5 * errors[1] + 1e-6 * wanted.norm()


def test_backwards_again_batched_and_of_gradients() -> None:
    module = nn.LSTM(6, 20)
    x = torch.randn(7, 3, 6, requires_grad=True)
    compiled = flambeau.compile(module, fullgraph=True)
    output = compiled(x)[0]
    weight = torch.randn_like(output)
    first, second = (torch.autograd.grad(output, x, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    batch = torch.randn(4, *output.shape)
    found = torch.autograd.grad(output, x, batch, is_grads_batched=True)[0]
    want = torch.autograd.grad(module(x)[0], x, batch, is_grads_batched=True)[0]
    torch.testing.assert_close(found, want)
    doubled = []
    for function in (module, compiled):
        (gradient,) = torch.autograd.grad(function(x)[0].square().sum(), x, create_graph=True)
        doubled.append(torch.autograd.grad(gradient.square().sum(), x)[0])
    torch.testing.assert_close(*doubled)


@pytest.mark.parametrize("name", ["output", "weight_hh_l0", "bias_hh_l0"])
def test_what_the_backward_reads_must_not_change(name: str) -> None:
    module = nn.LSTM(6, 20)
    x = torch.randn(7, 3, 6)
    errors = []
    for function in (module, flambeau.compile(module, fullgraph=True)):
        output = function(x)[0]
        with torch.no_grad():
            (output if name == "output" else getattr(module, name)).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            output.sum().backward()
        errors.append(str(error.value).split(":")[0])
    assert errors[0] == errors[1]
