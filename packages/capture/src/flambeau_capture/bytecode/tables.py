"""Exception tables of code objects (`co_exceptiontable`): which instructions each handler protects.

A number is written as six bits a byte, most significant first, bit 6 saying that more follow; bit 7
begins an entry.

Location tables of code objects (`co_linetable`, PEP 626): which place of the source each
instruction shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator


class Protected(NamedTuple):
    """Instructions from unit `start` to `end` (excluded) go to unit `target` with an exception, the
    stack cut to `depth`.
    """

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


# ---------------------------------------------------------------- location table


def position_of(code: types.CodeType, unit: int) -> Any:
    """(line, end line, column, end column) of a unit, or None."""
    for at, position in enumerate(code.co_positions()):
        if at == unit:
            line, end_line, column, end_column = position
            return None if line is None else (line, end_line or line, column, end_column)
    return None


_NO_LOCATION, _LONG, _NO_COLUMNS = 15, 14, 13


def location_entries(length: int, position: Any, line: int) -> bytes:
    """Entries of a location table (Objects/locations.md) for `length` units, `line` being that of
    the entry before.
    """
    table = bytearray()
    while length > 0:
        part = min(length, 8)
        if position is None:
            table.append(0x80 | _NO_LOCATION << 3 | part - 1)
        else:
            start, end, column, end_column = position
            known = column is not None and end_column is not None
            table.append(0x80 | (_LONG if known else _NO_COLUMNS) << 3 | part - 1)
            table += _signed(start - line)
            if known:
                table += _unsigned(end - start) + _unsigned(column + 1) + _unsigned(end_column + 1)
            line = start
        length -= part
    return bytes(table)


def _unsigned(number: int) -> bytes:
    """Six bits a byte, least significant first, bit 6 says that more follow."""
    table = bytearray()
    while number > 63:
        table.append(number & 63 | 64)
        number >>= 6
    table.append(number)
    return bytes(table)


def _signed(number: int) -> bytes:
    return _unsigned(-number << 1 | 1 if number < 0 else number << 1)
