"""The states of torch's default generators: kept before a call, to draw the same numbers again.

states = GeneratorStates.of(("cpu", "cuda:0"))
y = f(x)
with states.restored():
    again = f(x)            # the numbers of y; afterwards the generators stand where they stood
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """Of each device: on the CPU the state, on a GPU the seed and the Philox offset."""

    states: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(devices: Sequence[str]) -> GeneratorStates | None:
        """Where the generators of these devices stand; None while the current stream is captured:
        the numbers are those of the graph's replays then.
        """
        gpus = any(device != "cpu" for device in devices)
        if gpus and torch.cuda.is_current_stream_capturing():
            return None
        return GeneratorStates(tuple((device, _state(device)) for device in devices))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The generators stand there inside."""
        before = [(device, _state(device)) for device, _ in self.states]
        try:
            for device, state in self.states:
                _set(device, state)
            yield
        finally:
            for device, state in before:
                _set(device, state)


def _state(device: str) -> Any:
    if device == "cpu":
        return torch.get_rng_state()
    generator = _of_gpu(device)
    return generator.initial_seed(), generator.get_offset()


def _set(device: str, state: Any) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
        return
    seed, offset = state
    generator = _of_gpu(device)
    generator.manual_seed(seed)  # which sets the offset to 0
    generator.set_offset(offset)


def _of_gpu(device: str) -> torch.Generator:
    generator: torch.Generator = torch.cuda.default_generators[torch.device(device).index]
    return generator
