"""A trial of each program that an engine builds: on random numbers it must give what eager gives.

Exporters and frontends translate operators, and some translations are wrong for some arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau.engines.refusals import EngineRefuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference, as a part of the largest number."""


def random_inputs(examples: Sequence[torch.Tensor], *, positive: bool) -> list[torch.Tensor]:
    """Numbers for inputs like these: floats around 0 or above it, and integers that are 0 or 1,
    which most uses of integers take.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def numbers(example: torch.Tensor) -> torch.Tensor:
        device = example.device
        generator = generators.get(device)
        if generator is None:
            generator = generators[device] = torch.Generator(device).manual_seed(0)
        if example.is_floating_point():
            drawn = torch.randn(example.shape, device=device, generator=generator)
            drawn = drawn.abs() + 0.1 if positive else drawn
        else:
            drawn = torch.randint(0, 2, example.shape, device=device, generator=generator)
        return drawn.to(example.dtype)

    return [numbers(example) for example in examples]


def check_results(
    run: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None],
    eager: Callable[..., tuple[torch.Tensor, ...]],
    examples: Sequence[torch.Tensor],
) -> None:
    """EngineRefuses unless a program computes what eager computes."""
    inputs = random_inputs(examples, positive=False)
    expected = eager(*inputs)
    if not all(bool(want.isfinite().all()) for want in expected):  # a variance below 0, say
        inputs = random_inputs(examples, positive=True)
        expected = eager(*inputs)
    results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in expected]
    run(inputs, results)
    for result, want in zip(results, expected, strict=True):
        if not _equal(result, want):
            raise EngineRefuses("the engine's results are not eager's, in a trial")


def _equal(result: torch.Tensor, want: torch.Tensor) -> bool:
    if not want.is_floating_point():
        return torch.equal(result, want)
    finite = want.isfinite()
    if not torch.equal(result.isfinite(), finite):
        return False
    if not torch.equal(result[~finite].nan_to_num(2.0), want[~finite].nan_to_num(2.0)):
        return False
    most = float(want[finite].double().abs().max()) if bool(finite.any()) else 0.0
    difference = (result[finite].double() - want[finite].double()).abs()
    return not difference.numel() or float(difference.max()) <= _TOLERANCE[want.dtype] * max(
        most, 1e-3
    )
