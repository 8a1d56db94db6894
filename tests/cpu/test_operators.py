"""What becomes of operators, as `python -m tools.operators` counts it, and the page of those that
stay calls of ATen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau
from tests.same import same
from tools.operators.count import count
from tools.operators.page import PAGE, page

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m tools.operators --page"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("logit", "kernels"), ("masked.softmax", "kernels"), ("special.i1e", "kernels"),
        ("angle", "kernels"), ("t", "views"), ("linalg.inv", "extern"), ("nonzero", "breaks"),
    ],
)  # fmt: skip
def test_what_becomes_of_operators(name: str, kind: str) -> None:
    for dynamic in (False, True):
        assert count(name, dynamic, samples=2).kind == kind


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def refusals() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Calls, some of which eager refuses for their dtypes."""
    found: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows in (0, 3, 30):
            x, y = (torch.randn(n, 4).to(dtype) for n in (rows, 3))
            found += [(torch.cdist, (x, y, p)) for p in (1.0, 2.0)]
            found.append((torch.cdist, (x, y, 2.0, "donot_use_mm_for_euclid_dist")))
            found.append((torch.cdist, (x, y, 2.0, "use_mm_for_euclid_dist")))
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.int8):
        x = torch.ones(3).to(dtype)
        found += [(torch.isin, (x, x)), (torch.isin, (x, 1)), (torch.isin, (1, x))]
    found += [(torch.isin, (torch.ones(3), number)) for number in (True, 1j)]
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
        for planes in (0, 2):
            x, at = torch.ones(planes, 2, 2).to(dtype), torch.zeros(planes, 2, 2, dtype=torch.int64)
            found.append((torch.ops.aten.max_unpool2d, (x, at, (4, 4))))
    return found


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_dtypes_are_refused_as_in_eager(backend: str) -> None:
    for function, args in refusals():
        compiled = flambeau.compile(lambda *args, call=function: call(*args), backend=backend)
        same(outcome(compiled, args), outcome(function, args), f"{function} of {args}")


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them, first dim innermost."""
    memory = torch.zeros(2 * tensor.numel() + 3)
    strides, step = [], 2
    for size in tensor.shape:
        strides.append(step)
        step *= size
    return memory.as_strided(tensor.shape, strides, 3).copy_(tensor)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_strides_of_results(backend: str) -> None:
    def replaced(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, part, 0, 0, 4)

    def gamma(x: torch.Tensor) -> Any:
        return torch.mvlgamma(x, 1), torch.mvlgamma(x.t(), 3), x.clone().mvlgamma_(2)

    for rows in (4, 6):
        x, part = torch.rand(rows, 5), torch.rand(4, 5)
        for args in ((x, part), (spread(x), part), (x, spread(part)), (spread(x), spread(part))):
            for grad in (False, True):
                given = [arg.detach().requires_grad_(grad) for arg in args]
                ours = flambeau.compile(replaced, backend=backend)(*given)
                theirs = replaced(*given)
                assert ours.stride() == theirs.stride()
                same(ours, theirs)
    for x in (torch.rand(5, 4) + 5, spread(torch.rand(5, 4) + 5)):
        for mine, other in zip(flambeau.compile(gamma, backend=backend)(x), gamma(x), strict=True):
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other)
