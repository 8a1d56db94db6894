"""One case, eagerly and compiled: what differs, what broke the graph, and why."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

import flambeau
from flambeau.report import report_of
from flambeau_capture import state_of
from tests.differential import Run, compare, observe, to_double

if TYPE_CHECKING:
    from tools.sweep.ops.variants import Case

SEED = 5
CLOSE = 0.05
"""How far eager may be from its own float64 run, relative to the largest value, for that run to be
a reference.
"""


def run(case: Case, variant: str, backend: str) -> dict[str, Any]:
    """{"status", "differences", "breaks", "fallbacks", "seconds"}; status is "same" or "differs".

    breaks and fallbacks are the ids of the reasons why something ran eagerly.
    """
    started = time.perf_counter()
    with (
        warnings.catch_warnings(),
        torch.inference_mode(case.inference),
        torch.set_grad_enabled(case.grad),
    ):
        warnings.simplefilter("ignore")
        theirs = _observe(case.program, case.make(), case)
        compiled = flambeau.compile(case.program, backend=backend, dynamic=variant == "dynamic")
        ours = _observe(compiled, case.make(), case)
        found = _compare(ours, theirs, None)
        if found and theirs.error is None:
            exact = _exact(case, theirs)
            if exact is not None:
                found = _compare(ours, theirs, exact)
    events = state_of(compiled).events
    return {
        "status": "differs" if found else "same",
        "differences": [text[:400] for text in found[:4]],
        "raises": theirs.error.partition(":")[0] if theirs.error else "",
        "breaks": sorted({e.reason.id for e in events if e.reason is not None}),
        "fallbacks": sorted({g.fallback.reason for g in report_of(compiled).graphs if g.fallback}),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _observe(function: Any, args: tuple[Any, ...], case: Case) -> Run:
    return observe(function, args, seed=SEED, backward=case.grad)


def _compare(ours: Run, theirs: Run, exact: Run | None) -> list[str]:
    return compare(ours, theirs, exact, factor=8.0, messages=False)


def _exact(case: Case, theirs: Run) -> Run | None:
    """The float64 run; None where it is no reference, as for what draws random numbers."""
    torch.manual_seed(SEED)
    before = torch.get_rng_state()
    if theirs.rng is None or not torch.equal(before, theirs.rng[: before.numel()]):
        return None
    try:
        exact = _observe(case.program, to_double(case.make()), case)
    except Exception:
        return None
    if exact.error is not None or len(exact.leaves) != len(theirs.leaves):
        return None
    pairs = zip(exact.leaves, theirs.leaves, strict=True)
    return exact if all(_close(best, other) for best, other in pairs) else None


def _close(best: Any, other: Any) -> bool:
    if not isinstance(best, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    if best.shape != other.shape or best.layout != torch.strided:
        return False
    if not (best.is_floating_point() or best.is_complex()) or not best.numel():
        return True
    wide = torch.complex128 if best.is_complex() else torch.float64
    best, other = best.detach().to(wide), other.detach().to(wide)
    finite = torch.isfinite(best) & torch.isfinite(other)
    if not finite.any():
        return True
    apart = (best - other)[finite].abs().max()
    return bool(apart <= CLOSE * best[finite].abs().max())
