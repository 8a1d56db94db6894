"""The default generators of GPUs: what a Program's kernels draw from.

A Program reserves its random numbers when it runs: `reserve` returns a generator's seed and offset
and advances the offset, as a draw of eager does. In a recording nothing is drawn: `Reservations`
takes down where each draw stands behind the recording's first, and each replay reserves for all.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 4
"""Offsets are multiples of this."""


class Reservations:
    """The draws of a call that is being recorded.

    `offsets`: each draw's, behind the offset that the recording begins with; `total`: what they
    advance the generator by. With `shared` library calls draw too, and torch says where each draw
    stands.
    """

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared
        self.offsets: list[int] = []
        self.total = 0

    def add(self, device: int, increment: int) -> None:
        """The next draw."""
        if self.shared:
            self.offsets.append(_advance_captured(device, increment))
            return
        self.offsets.append(self.total)
        self.total += rounded(increment)


class _Recording(threading.local):
    reservations: Reservations | None = None


_RECORDING = _Recording()


@contextlib.contextmanager
def recorded(reservations: Reservations) -> Iterator[None]:
    """In the block, this thread's draws are taken down."""
    _RECORDING.reservations = reservations
    try:
        yield
    finally:
        _RECORDING.reservations = None


_ADVANCING = threading.RLock()
"""Held between reading an offset and writing it: Programs of several threads draw in turn. A
finalizer may run in there, and draw.
"""


def reserve(device: int, increment: int) -> tuple[int, int]:
    """Advance the default generator of a GPU; seed and offset of before, as signed words."""
    reservations = _RECORDING.reservations
    if reservations is not None:
        reservations.add(device, increment)
        return 0, 0
    seed, offset = _advance(device, increment)
    return _signed(seed), _signed(offset)


def _advance(device: int, increment: int) -> tuple[int, int]:
    generator = torch.cuda.default_generators[device]
    with _ADVANCING:
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + rounded(increment))
    return seed, offset


def device_index(device: str) -> int:
    """The index of a GPU by its name."""
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def rounded(increment: int) -> int:
    """What a draw advances the offset by."""
    return -(-increment // STEP) * STEP


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


# Graphs whose library calls draw


class GraphState:
    """What the library calls of one CUDA graph draw from: the seed and offset that `reserve` read
    last.

    torch keeps seed and offset of a graph's draws on the GPU, in the state of the generator that
    was captured. Those of the default generator are shared by all graphs of the program, which may
    run at the same time on other streams.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.generator = torch.Generator(f"cuda:{device}")

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """In the block, what is captured from the default generator draws from this state."""
        default = torch.cuda.default_generators[self.device]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generator)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)

    def reserve(self, increment: int) -> tuple[int, int]:
        """`reserve` of the default generator for a replay, which comes next."""
        seed, offset = _advance(self.device, increment)
        self.generator.manual_seed(seed)
        self.generator.set_offset(offset)
        return _signed(seed), _signed(offset)


# While torch captures a graph, only ATen knows where the generator stands in it.


class _PhiloxState(ctypes.Structure):
    """at::PhiloxCudaState."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("offset_in_graph", ctypes.c_uint64),
        ("captured", ctypes.c_bool),
    )


@functools.cache
def _philox_state() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    function = library["_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"]
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    function.restype = _PhiloxState
    return function


def captured_offset(device: int) -> int:
    """Where a generator that torch captures stands behind the graph's beginning."""
    return _advance_captured(device, 0)


def _advance_captured(device: int, increment: int) -> int:
    """Advance a generator that torch captures; where it stood behind the graph's beginning."""
    generator = torch.cuda.default_generators[device]
    # A generator of Python holds the address of the C++ one behind its head.
    implementation = ctypes.c_uint64.from_address(id(generator) + object.__basicsize__).value
    state: _PhiloxState = _philox_state()(implementation, increment)
    return int(state.offset_in_graph)
