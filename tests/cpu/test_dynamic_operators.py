"""Operators with rules for symbolic sizes: one compilation serves further sizes, odd and small,
with eager's strides and gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

import flambeau
from tests.worlds import kinds

if TYPE_CHECKING:
    from collections.abc import Callable


def _rows(n: int) -> torch.Tensor:
    return torch.randn(n, 6, requires_grad=True)


def _definite(n: int) -> torch.Tensor:
    made = torch.randn(2, n, n)
    return (made @ made.mT + n * torch.eye(n)).requires_grad_()


def _image(n: int) -> torch.Tensor:
    return torch.randn(2, 3, 4 * n, 6, requires_grad=True)


PROGRAMS: dict[str, tuple[Callable[[int], torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "cdist": (_rows, lambda x: torch.cdist(x, x[:1] + 1)),
    "pdist": (lambda n: _rows(n + 1), F.pdist),  # eager's backward crashes on no rows
    "renorm": (_rows, lambda x: x.T.renorm(2, 0, 1.0)),
    "rfft along rows": (_rows, lambda x: torch.fft.rfft(x, dim=0).abs()),
    "fft2": (_rows, lambda x: torch.fft.fft2(x.T).abs()),
    "irfft of columns": (_rows, lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=6, dim=1)),
    "cholesky": (_definite, torch.linalg.cholesky),
    "solve_triangular": (
        _definite,
        lambda x: torch.linalg.solve_triangular(x, x.sum(-1, keepdim=True), upper=True),
    ),
    "det": (_definite, torch.linalg.det),
    "inverse": (_definite, torch.linalg.inv),
    "lu": (_definite, torch.linalg.lu),
    "eigvals": (_definite, lambda x: torch.linalg.eigvals(x).real),
    "qr": (_definite, torch.linalg.qr),
    "pinv": (_definite, torch.linalg.pinv),
    "matrix_power": (_definite, lambda x: torch.linalg.matrix_power(x, -2)),
    "diagonal_copy": (_definite, lambda x: torch.diagonal_copy(x, 0, 1, 2)),
    "unfold_copy": (_image, lambda x: torch.unfold_copy(x, 2, 3, 2)),
    "max_unpool": (
        _image,
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),  # type: ignore[call-arg]
    ),
    "bessel": (lambda n: torch.randn(n, 3).T, torch.special.bessel_j1),
    "chebyshev": (
        lambda n: torch.rand(n, 3),
        lambda x: torch.special.chebyshev_polynomial_t(x, 3),
    ),
    "linspace to a size": (_rows, lambda x: torch.linspace(0, x.shape[0], 9)),
    "scatter": (_rows, lambda x: x.T.scatter(0, x.T.argsort(0), x.T * 2)),
    "scatter_reduce": (
        _rows,
        lambda x: torch.zeros_like(x).scatter_reduce(0, torch.zeros_like(x).long(), x, "amax"),
    ),
    "index_reduce": (
        _rows,
        lambda x: torch.ones(9, 6).index_reduce(
            0, torch.arange(x.shape[0]) % 9, x.detach(), "mean", include_self=False
        ),
    ),
    "isin": (_rows, lambda x: torch.isin(x.detach().round(), x.detach()[:1].round())),
    "polygamma": (lambda n: torch.rand(n, 3), lambda x: torch.polygamma(3, x + 0.1)),
    "cross": (lambda n: torch.randn(n, 3), lambda x: torch.linalg.cross(x, x.flip(0))),
    "unfold of an image": (_image, lambda x: F.unfold(x, 3, padding=1, stride=2)),
    "frexp": (lambda n: torch.randn(n, 3), lambda x: tuple(torch.frexp(x))),
    "histogram": (lambda n: torch.rand(n, 3), lambda x: tuple(torch.histogram(x, 4))),
    "masked_scatter": (_rows, lambda x: torch.zeros_like(x).masked_scatter(x > 0, x * 2)),
    "masked_scatter expanded": (_rows, lambda x: x.sum(0).masked_scatter(x > 0, x * 2)),
    "norm of an order given": (_rows, lambda x: x.norm(3, dim=1)),
    "block_diag": (_rows, lambda x: torch.block_diag(x.detach(), x.detach().T)),
}


def _strides(x: torch.Tensor) -> list[int]:
    pairs = zip(x.shape, x.stride(), strict=True)
    return [step for size, step in pairs if size != 1] if x.numel() else []


def _check(program: Callable[..., Any], compiled: Callable[..., Any], x: torch.Tensor) -> None:
    results = []
    for function in (program, compiled):
        given = x.detach().clone().requires_grad_(x.requires_grad)
        outputs = function(given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        wanted = [out for out in outputs if out.requires_grad]
        gradients = torch.autograd.grad([out.sum() for out in wanted], given) if wanted else ()
        results.append((outputs, gradients))
    (expected, expected_gradients), (actual, gradients) = results
    assert [_strides(out) for out in actual] == [_strides(out) for out in expected]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compilation_serves_other_sizes(name: str, backend: str) -> None:
    torch.manual_seed(0)
    make, program = PROGRAMS[name]
    compiled = flambeau.compile(program, dynamic=True, backend=backend)
    for size in (4, 7, 3, 12):
        _check(program, compiled, make(size))
    explanation = flambeau.explain(compiled)
    assert not explanation.breaks
    assert [graph.fallback for graph in explanation.graphs] == [None]
    assert [graph.specialises for graph in explanation.graphs] == [()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_sizes(name: str) -> None:
    """Sizes 1 and 0, where eager takes them, after others."""
    torch.manual_seed(0)
    make, program = PROGRAMS[name]
    compiled = flambeau.compile(program, dynamic=True, backend="aot_eager")
    _check(program, compiled, make(5))
    for size in (1, 0, 2):
        try:
            program(make(size))
        except (RuntimeError, IndexError):
            with pytest.raises((RuntimeError, IndexError)):
                compiled(make(size))
        else:
            _check(program, compiled, make(size))


def test_operators_without_a_rule_specialise() -> None:
    """Such an operator stays in the graph: its sizes are guarded, `explain` says so, and other
    sizes are compiled.
    """

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.view_copy(x * 2, dtype=torch.int32) + 1

    compiled = flambeau.compile(program, dynamic=True, backend="aot_eager")
    for size in (4, 7, 4, 3, 1, 0):
        _check(program, compiled, torch.randn(size, 5))
    explanation = flambeau.explain(compiled)
    assert not explanation.breaks
    assert explanation.graphs[0].specialises == (
        "L['x'].size(0) == 4, as aten.view_copy.dtype has no shape rule for symbolic sizes",
        "L['x'].size(1) == 5, as aten.view_copy.dtype has no shape rule for symbolic sizes",
    )
    assert "specialises:" in str(explanation)
    assert sum(kind in ("capture", "recompile") for kind in kinds(compiled)) == 5


def test_numbers_of_operators_without_a_rule_specialise() -> None:
    """A size that is a dimension which must stay dynamic is an error rather than specialised."""
    x = torch.randn(4, 5)
    flambeau.mark_dynamic(x, 0)
    compiled = flambeau.compile(
        lambda x: torch.view_copy(x, dtype=torch.int32), backend="aot_eager"
    )
    with pytest.raises(Exception, match="dynamic"):
        compiled(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_settings_of_convolutions_that_vary(
    transposed: bool, dims: int, dtype: torch.dtype
) -> None:
    """Strides, paddings and dilations that are arguments are symbolic sizes, too."""
    torch.manual_seed(0)

    def program(
        x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int
    ) -> torch.Tensor:
        name = f"conv{'_transpose' if transposed else ''}{dims}d"
        rest = {"output_padding": padding} if transposed else {}
        return getattr(F, name)(
            x, weight, stride=stride, padding=padding, dilation=dilation, **rest
        )

    compiled = flambeau.compile(program, dynamic=True)
    for size, stride, padding, dilation in ((9, 2, 1, 2), (9, 3, 2, 2), (12, 3, 0, 1)):
        x = torch.randn(2, 16, *(size for _ in range(dims)), dtype=dtype)
        weight = torch.randn(16, 16, *(3 for _ in range(dims)), dtype=dtype)
        results = []
        for function in (program, compiled):
            given = [each.clone().requires_grad_() for each in (x, weight)]
            result = function(*given, stride, padding, dilation)
            results.append((result, *torch.autograd.grad(result.sum(), given)))
        torch.testing.assert_close(results[1], results[0])
    explanation = flambeau.explain(compiled)
    assert not explanation.breaks
    assert all(graph.fallback is None for graph in explanation.graphs)
