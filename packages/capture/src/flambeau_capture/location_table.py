"""Location tables of code objects (`co_linetable`, PEP 626): which place of the source each instruction shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types


def position_of(code: types.CodeType, unit: int) -> Any:
    """(line, end line, column, end column) of a unit, or None."""
    for at, position in enumerate(code.co_positions()):
        if at == unit:
            line, end_line, column, end_column = position
            return None if line is None else (line, end_line or line, column, end_column)
    return None


_NO_LOCATION, _LONG, _NO_COLUMNS = 15, 14, 13


def location_entries(length: int, position: Any, line: int) -> bytes:
    """Entries of a location table (Objects/locations.md) for `length` units, `line` being that of the entry before."""
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
