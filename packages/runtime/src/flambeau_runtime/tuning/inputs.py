"""What a candidate's Program is called with when it is timed: random tensors as it declares them.

inputs x: float32[s0, 512], s0; s0 likely 64  ->  [randn(64, 512), 64]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime.dims import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_runtime.program import Program
    from flambeau_runtime.tuning.contest import LikelyIndices


def likely_inputs(program: Program, numbers: Sequence[int]) -> list[Any]:
    """Random tensors as the Program declares its inputs, and the values of its int inputs, which
    come last.
    """
    given = program.given_inputs
    tensors = {tensor.name: tensor for tensor in program.tensors}
    first = len(given) - len(numbers)
    sizes = {symbol.name: numbers[symbol.input - first] for symbol in program.symbols}
    result: list[Any] = []
    for name in given[:first]:
        tensor = tensors[name]
        shape, stride = (
            [evaluate(dim, sizes) for dim in dims] for dims in (tensor.shape, tensor.stride)
        )
        generator = torch.Generator(tensor.device).manual_seed(len(result))
        dtype = getattr(torch, tensor.dtype)
        memory = random_memory(_extent(shape, stride), dtype, generator)
        result.append(memory.as_strided(shape, stride))
    return [*result, *numbers]


def copied_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same strides, in a copy of the memory that the other one spans."""
    if 0 in tensor.shape:
        return tensor.new_empty_strided(tensor.shape, tensor.stride())
    extent = _extent(tensor.shape, tensor.stride())
    return tensor.as_strided((extent,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The elements of memory that a tensor spans, at least 1."""
    return max(1, 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)))


def fill_indices(inputs: Sequence[Any], indices: Sequence[LikelyIndices]) -> None:
    """Write likely places into the inputs that hold places."""
    for each in indices:
        tensor = inputs[each.input]
        if each.rising:
            count = tensor.numel()
            places = torch.arange(1, count + 1, device=tensor.device) * each.below // count
        else:
            generator = torch.Generator(tensor.device).manual_seed(each.input)
            places = torch.randint(
                max(each.below, 1), tensor.shape, device=tensor.device, generator=generator
            )
        tensor.copy_(places.view(tensor.shape))


def random_memory(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """`count` elements: floats of a normal distribution, small integers, bools."""
    device = generator.device
    if dtype.is_floating_point:
        values = torch.randn(count, dtype=torch.float32, device=device, generator=generator)
        return values.to(dtype)
    high = 2 if dtype in (torch.bool, torch.uint8) else 4
    return torch.randint(0, high, (count,), device=device, generator=generator).to(dtype)
