"""The generator, by the known answers of its authors, and what a draw of eager takes from it."""

from __future__ import annotations

import pytest
import torch

from flambeau_prims.gpu_draws import GpuFacts, grid_threads, offset_increment
from flambeau_prims.philox import PATTERNS, philox, signed

ALL = 0xFFFFFFFF

KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Counter, key and words of Philox4x32-10, from the test vectors of Random123."""


def pair(low: int, high: int) -> int:
    """Two words as one int64."""
    return signed(low | high << 32)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    call = torch.full((4,), pair(*counter[:2]))
    thread = torch.full((4,), pair(*counter[2:]))
    assert philox(pair(*key), 0, call, thread, torch.arange(4)).tolist() == list(words)


def test_an_offset_counts_words() -> None:
    zero, lanes = torch.zeros(4, dtype=torch.int64), torch.arange(4)
    later = philox(7, 4 * 5, zero, zero, lanes)
    assert torch.equal(later, philox(7, 0, zero + 5, zero, lanes))


def test_the_grid_of_a_draw() -> None:
    facts = GpuFacts(multiprocessors=132, threads=2048)
    most = 132 * 2048
    for numel, threads in ((1, 256), (256, 256), (257, 512), (most, most), (10**8, most)):
        assert grid_threads(facts, numel) == threads
    assert offset_increment(1, 256, 4) == 4
    assert offset_increment(4 * most, most, 4) == 4
    assert offset_increment(4 * most + 1, most, 4) == 8
    assert offset_increment(2 * most + 1, most, 2) == 8


def test_patterns_use_whole_calls() -> None:
    for name, pattern in PATTERNS.items():
        words = pattern.elements // pattern.group * pattern.words
        assert words <= 4 * pattern.calls, name
