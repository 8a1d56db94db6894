"""Special functions, compiled: values and gradients as eager, and no call of ATen."""

from __future__ import annotations

import pytest
import torch

import flambeau
from tests.differential import differences

special = torch.special
PROGRAMS = {
    "errors": lambda x: (x.erfinv() * 2, special.ndtri(x), special.erfcx(x), special.log_ndtr(-x)),
    "gamma": lambda x: (x.digamma() + 1, x.polygamma(1), torch.mvlgamma(x + 2, 3)),
    "modified bessel": lambda x: (x.i0(), special.i0e(9 * x), special.i1(x), special.i1e(9 * x)),
}
WITHOUT_GRADIENTS = {
    "bessel": lambda x: (special.bessel_j0(9 * x), special.bessel_j1(9 * x)),
    "second kind": lambda x: (special.bessel_y0(9 * x), special.bessel_y1(9 * x)),
    "decaying": lambda x: (
        special.modified_bessel_k0(9 * x),
        special.modified_bessel_k1(9 * x),
        special.scaled_modified_bessel_k0(9 * x),
        special.scaled_modified_bessel_k1(9 * x),
        special.spherical_bessel_j0(9 * x),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    found = differences(
        PROGRAMS[name], lambda: (torch.rand(7, 33).mul(0.9).add(0.05).requires_grad_(),)
    )
    assert not found, found
    with torch.no_grad():
        report = flambeau.explain(PROGRAMS[name], dynamic=True)(torch.rand(5, 9))
    assert report.graphs[0].externs == ()


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_values(name: str) -> None:
    found = differences(WITHOUT_GRADIENTS[name], lambda: (torch.rand(7, 33) + 0.01,))
    assert not found, found
    report = flambeau.explain(WITHOUT_GRADIENTS[name])(torch.rand(5, 9))
    assert report.graphs[0].externs == ()
