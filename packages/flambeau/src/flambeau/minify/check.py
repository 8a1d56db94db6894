"""What the script of a minified graph does: run it eagerly and compiled, and compare.

A result is wrong if it differs from eager's by more than the tolerance, and is farther from the
same computation in float64 than eager's is, by a factor.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from flambeau.api import compile as compile_function

if TYPE_CHECKING:
    from collections.abc import Callable

FAILS = 70
EAGER_FAILS = 71
"""Exit statuses: it fails; eager fails, so there is nothing to compare."""

MARK = "failure: "
"""Begins the line that says how it fails."""

FARTHER = 4.0
"""So many times eager's distance from float64 is no failure."""


def check(
    graph: torch.nn.Module,
    example_inputs: Callable[[], list[Any]],
    backend: str = "inductor",
    tolerance: float = 1e-3,
) -> None:
    """Exit with FAILS and a line that says how, if the compiled graph fails; print that all is
    equal otherwise. `backend` is a name, or "module:function".
    """
    try:
        expected = run(graph, example_inputs)
    except Exception as error:
        print(f"eager raises {type(error).__name__}: {error}")
        sys.exit(EAGER_FAILS)
    try:
        results = run(compile_function(graph, backend=backend_named(backend)), example_inputs)
    except Exception as error:
        _fail(f"raises {type(error).__name__}", str(error))
    if len(results) != len(expected):
        _fail("wrong", f"{len(results)} results, not {len(expected)}")
    exact: list[torch.Tensor] | None = None
    for number, (ours, eager) in enumerate(zip(results, expected, strict=True)):
        if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
            _fail("wrong", f"result {number} is {ours.dtype} {tuple(ours.shape)}")
        compared = _comparable(ours), _comparable(eager)
        if torch.allclose(*compared, rtol=tolerance, atol=tolerance, equal_nan=True):
            continue
        exact = exact or in_float64(graph, example_inputs) or expected
        reference = exact[number] if exact[number].shape == eager.shape else eager
        off, bound = distance(ours, reference), FARTHER * distance(eager, reference)
        if not off <= bound + tolerance:
            _fail("wrong", f"result {number} is off by {off:.3g}, eager by {bound / FARTHER:.3g}")
    print(f"equal: {len(expected)} results and gradients")


def run(
    function: Callable[..., Any], example_inputs: Callable[[], list[Any]], *, wide: bool = False
) -> list[torch.Tensor]:
    """The tensors that a function returns, and the gradients of the inputs that require them."""
    torch.manual_seed(0)
    inputs = [_widened(x) if wide else x for x in example_inputs()]
    outputs = [x for x in tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    roots = [out for out in outputs if out.requires_grad]
    if not roots or not leaves:
        return [out.detach() for out in outputs]
    tangents = [torch.ones_like(root) for root in roots]
    gradients = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
    return [*(out.detach() for out in outputs), *(g for g in gradients if g is not None)]


def in_float64(
    graph: torch.nn.Module, example_inputs: Callable[[], list[Any]]
) -> list[torch.Tensor] | None:
    """The results of the same calls in float64; None where the graph cannot be run so."""
    try:
        return run(graph, example_inputs, wide=True)
    except Exception:
        return None


def distance(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, relative to the largest element; inf for a NaN or infinity that only
    one has.
    """
    ours, exact = _comparable(result), _comparable(reference)
    same = (ours == exact) | (ours.isnan() & exact.isnan())
    off = torch.where(same, 0.0, (ours - exact).abs()).nan_to_num(nan=torch.inf)
    scale = torch.where(exact.isfinite(), exact.abs(), 0.0)
    if not off.numel():
        return 0.0
    return float(off.max() / max(1.0, float(scale.max())))


def backend_named(name: str) -> Any:
    """The backend of a name, or of "module:function"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function) if function else name


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.cpu()
    return torch.view_as_real(host.to(torch.complex128)) if host.is_complex() else host.double()


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _fail(kind: str, text: str) -> None:
    sys.stdout.flush()
    print(f"{MARK}{kind}\n{text}", flush=True)
    sys.exit(FAILS)
