"""Element by element comparison of floating results with eager's and with those in float64."""

from __future__ import annotations

import torch

UNITS = 16
"""Units in the last place of an element that any program may be off by."""

FACTOR = 4.0
"""How many times eager's largest error a compiled program's may be."""


def close(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None, unit: float = 0.0
) -> str | None:
    """Which elements are neither eager's nor near the exact ones, or None. Without exact ones,
    eager's stand for them. unit: the unit in the last place of the program's intermediate values,
    if it is larger than that of the results.
    """
    ours64, theirs64 = ours.detach().double(), theirs.detach().double()
    equal = (ours64 == theirs64) | (ours64.isnan() & theirs64.isnan())
    if bool(equal.all()):
        return None
    exact64 = theirs64 if exact is None else exact.detach().double()
    info = torch.finfo(ours.dtype)
    finite = exact64.isfinite()
    error = torch.where(finite & theirs64.isfinite(), (theirs64 - exact64).abs(), 0.0).max()
    magnitude = torch.where(finite, exact64.abs(), 0.0)
    # A sum that cancels is off by units of its addends, which are about as large as its neighbours;
    # a few huge numbers hide no error of others.
    nonzero = magnitude[magnitude > 0]
    usual = nonzero.median().clamp(min=1.0, max=info.max) if len(nonzero) else 1.0
    eps = max(info.eps, unit, 1e-14) * (1 if exact is not None else 8)
    allowed = FACTOR * error + UNITS * eps * (magnitude + usual)
    right = equal | (finite & ((ours64 - exact64).abs() <= allowed))
    right |= (ours64 == exact64) | (ours64.isnan() & exact64.isnan())
    # Infinite in this dtype alone, or in eager's intermediate values of it.
    right |= finite & (ours64 == exact64.sign() * torch.inf) & (magnitude >= 0.99 * info.max)
    if info.bits < 32:
        right |= finite & ~theirs64.isfinite()
    wrong = (~right).nonzero()
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    return (
        f"{len(wrong)} of {ours.numel()} {ours.dtype} differ, at {index}: {ours64[index]:.9g}, "
        f"eager {theirs64[index]:.9g}, float64 {exact64[index]:.9g} +- {allowed[index]:.3g}"
    )
