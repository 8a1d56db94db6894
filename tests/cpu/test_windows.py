"""Windows, resampling and scatters on a CPU, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import flambeau
from tests.programs.windows import PROGRAMS, assert_as_near_as_eager


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_near_as_eager(name: str) -> None:
    function, makers = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = tuple(make() for make in makers)
    assert_as_near_as_eager(function, flambeau.compile(function, fullgraph=True), arguments)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("bilinear", (3, 6)), ("bilinear", (6, 9)), ("bicubic", (3, 6)), ("bicubic", (6, 9)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("antialias", [False, True])
def test_nan_stays_under_the_filter(
    mode: str, size: tuple[int, int], value: float, antialias: bool
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=size, mode=mode, antialias=antialias)

    x = torch.randn(1, 4, 6, 6)
    x[0, 1, 2, 2] = value
    got = flambeau.compile(program, fullgraph=True)(x)
    torch.testing.assert_close(got, program(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_to_one_column(mode: str) -> None:
    """Whatever eager reads there; the gradient has eager's layout."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(9, 1), mode=mode, antialias=True)

    for shape in ((1, 1, 7, 5), (3, 3, 13, 16)):
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()
        got, want = flambeau.compile(program, fullgraph=True)(x), program(x)
        torch.testing.assert_close(got, want)
        direction = torch.randn_like(want)
        gradients = [torch.autograd.grad(y, x, direction)[0] for y in (got, want)]
        torch.testing.assert_close(*gradients)
        assert gradients[0].stride() == gradients[1].stride()


def test_a_kernel_larger_than_the_volume() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool3d(x, (3, 1, 2), 2, (1, 0, 0))

    x = torch.randn(3, 3, 2, 3, 4)
    errors = []
    for function in (program, flambeau.compile(program)):
        with pytest.raises(RuntimeError) as error:
            function(x)
        errors.append(str(error.value))
    assert "smaller than kernel size" in errors[0]
    assert errors[0] == errors[1]
