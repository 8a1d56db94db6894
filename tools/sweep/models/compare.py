"""Whether what a compiled model gave is what eager gave: structure, dtypes, sizes, and values to
within rounding.

Floats are judged against a float64 run of the same model: compiled may be no farther from it than
eager is, within a small factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

FACTOR = 8.0
"""How much farther from float64 than eager compiled may be."""
FLOOR = 2e-5
"""Relative to the largest value of a tensor: what is below this is rounding whatever eager's own
error.
"""


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a model's output, with where they stand."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors(item, f"{path}.{name}")
    elif isinstance(value, (tuple, list)):
        for at, item in enumerate(value):
            yield from tensors(item, f"{path}[{at}]")
    elif hasattr(value, "layers"):  # a cache of keys and values
        yield from tensors([vars(layer) for layer in value.layers], f"{path}.layers")


Named = dict[str, torch.Tensor]


def differences(got: Named, want: Named, exact: Named | None) -> list[str]:
    """What differs, in words; `exact` is the float64 run (None: eager's values alone decide)."""
    if list(got) != list(want):
        return [f"has {sorted(set(got) ^ set(want)) or 'another order'}"]
    found = []
    for name, mine in got.items():
        yours = want[name]
        if mine.dtype != yours.dtype or mine.shape != yours.shape:
            found.append(
                f"{name}: {mine.dtype} {tuple(mine.shape)} instead of {yours.dtype} "
                f"{tuple(yours.shape)}"
            )
        elif mine.requires_grad != yours.requires_grad:
            found.append(f"{name}: requires_grad={mine.requires_grad}")
        elif not mine.is_floating_point():
            if not torch.equal(mine, yours):
                found.append(f"{name}: integers differ")
        else:
            text = _float_difference(mine, yours, None if exact is None else exact.get(name))
            if text:
                found.append(f"{name}: {text}")
    return found


def _float_difference(
    mine: torch.Tensor, yours: torch.Tensor, exact: torch.Tensor | None
) -> str | None:
    mine, yours = mine.detach().double(), yours.detach().double()
    finite = torch.isfinite(yours)
    if not torch.equal(mine[~finite].nan_to_num(), yours[~finite].nan_to_num()):
        return "other values are not finite"
    if not finite.any():
        return None
    scale = yours[finite].abs().max().item()
    apart = (mine - yours)[finite].abs().max().item()
    if apart <= FLOOR * scale + 1e-7:
        return None
    if exact is not None and exact.shape == mine.shape:
        exact = exact.detach().double()
        error = (mine - exact)[finite].abs().max().item()
        usual = (yours - exact)[finite].abs().max().item()
        if error <= FACTOR * usual + FLOOR * scale:
            return None
        return f"off by {error:.2g} of {scale:.2g} where eager is off by {usual:.2g}"
    return f"off by {apart:.2g} of {scale:.2g}"
