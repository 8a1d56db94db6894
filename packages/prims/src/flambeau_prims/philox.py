"""Philox, eager's generator on GPUs: which words the elements of a draw are made of.

A draw of eager launches a grid of threads; thread t computes, at its call number c, the four words

    philox4x32-10(key = seed, counter = (offset / 4 + c, t))

and the generator's offset advances by what one thread may have used. So the numbers of a draw
depend on the grid, and through it on the device (`gpu_draws.py`).

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011; the order of words
and threads is that of eager's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

WORDS = 4
"""Words of one call of the generator; eager's offsets count words."""


@dataclass(frozen=True)
class Pattern:
    """Which words the elements of a draw are made of.

    A thread draws `elements` elements at a time: adjacent ones if `contiguous`, else each
    `threads` behind the one before. `group` of these share `words` words.
    """

    elements: int
    contiguous: bool
    group: int
    words: int

    @property
    def calls(self) -> int:
        """Calls of the generator for `elements` elements."""
        return -(-self.elements // self.group * self.words // WORDS)


PATTERNS = {
    "strided": Pattern(4, False, 1, 1),
    "strided_pairs": Pattern(4, False, 2, 2),
    "strided_wide": Pattern(2, False, 1, 2),
    "strided_wide_pairs": Pattern(2, False, 2, 4),
    "adjacent2": Pattern(2, True, 1, 1),
    "adjacent4": Pattern(4, True, 1, 1),
    "adjacent8": Pattern(8, True, 1, 1),
}
"""By the name that a graph has: one word an element, or two that make 53 bits (wide); pairs of
elements that share their words (Box and Muller). Dropout of aligned memory draws for adjacent
elements.
"""


def random_words(
    state: Tensor, shape: Sequence[int], threads: int, pattern: str, word: int, device: torch.device
) -> Tensor:
    """Word number `word` of each element's, in row-major order: int64 in [0, 2**32)."""
    numel = 1
    for size in shape:
        numel *= size
    which = PATTERNS[pattern]
    index = torch.arange(numel, device=device)
    if which.contiguous:
        first, member = index // which.elements, index % which.elements
        turn, thread = first // threads, first % threads
    else:
        turn, rest = index // (threads * which.elements), index % (threads * which.elements)
        member, thread = rest // threads, rest % threads
    position = member // which.group * which.words + word
    seed, offset = state.tolist()
    words = philox(seed, offset, turn * which.calls + position // WORDS, thread, position % WORDS)
    return words.reshape(tuple(shape))


def random_member(shape: Sequence[int], threads: int, pattern: str, device: torch.device) -> Tensor:
    """The place of each element in its group: int64."""
    numel = 1
    for size in shape:
        numel *= size
    which = PATTERNS[pattern]
    index = torch.arange(numel, device=device)
    if which.contiguous:
        member = index % which.elements
    else:
        member = index % (threads * which.elements) // threads
    return (member % which.group).reshape(tuple(shape))


_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(
    seed: Tensor | int, offset: Tensor | int, call: Tensor, thread: Tensor, lane: Tensor
) -> Tensor:
    """Word `lane` (0 to 3) of a thread's call: int64 in [0, 2**32)."""
    counter = (offset >> 2) + call
    keys = [seed & _LOW, (seed >> 32) & _LOW]
    words = [counter & _LOW, (counter >> 32) & _LOW, thread & _LOW, (thread >> 32) & _LOW]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (
            _wide_product(factor, word)
            for factor, word in zip(_MULTIPLIERS, (words[0], words[2]), strict=True)
        )
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(key + step) & _LOW for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return torch.where(
        lane < 2,
        torch.where(lane == 0, words[0], words[1]),
        torch.where(lane == 2, words[2], words[3]),
    )


def _wide_product(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a product of words; int64 wraps, and keeps the 64 bits."""
    product = word * factor
    return (product >> 32) & _LOW, product & _LOW


def signed(word: int) -> int:
    """A 64-bit word as an int64."""
    return word - (1 << 64) if word >> 63 else word
