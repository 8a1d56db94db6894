"""Exception tables of code objects (`co_exceptiontable`): which instructions each handler protects.

A number is written as six bits a byte, most significant first, bit 6 saying that more follow; bit 7 begins an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator


class Protected(NamedTuple):
    """Instructions from unit `start` to `end` (excluded) go to unit `target` with an exception, the stack cut to `depth`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool
    """Whether the number of the instruction is pushed below the exception."""


def read_exception_table(code: types.CodeType) -> Iterator[Protected]:
    """The protected ranges of a code object, in order."""
    table = iter(code.co_exceptiontable)
    for first in table:
        start = _read(first, table)
        length = _read(next(table), table)
        target = _read(next(table), table)
        packed = _read(next(table), table)
        yield Protected(start, start + length, target, packed >> 1, bool(packed & 1))


def _read(first: int, rest: Iterator[int]) -> int:
    value = first & 63
    while first & 64:
        first = next(rest)
        value = value << 6 | first & 63
    return value


def write_exception_table(ranges: Iterable[Protected]) -> bytes:
    """The table that reads as these ranges."""
    return b"".join(map(_entry, ranges))


def _entry(protected: Protected) -> bytes:
    start, end, target, depth, lasti = protected
    encoded = bytearray()
    for at, number in enumerate((start, end - start, target, depth << 1 | lasti)):
        groups = [number & 63]
        while number := number >> 6:
            groups.append(number & 63 | 64)
        groups.reverse()
        groups[0] |= 128 if at == 0 else 0
        encoded += bytes(groups)
    return bytes(encoded)
