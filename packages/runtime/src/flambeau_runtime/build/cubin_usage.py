"""What a thread of a compiled GPU kernel takes, read from its cubin: registers and stack.

    b"\\x7fELF..." -> Usage(registers=48, stack=0)

A cubin is an ELF file. Its section `.nv.info` is a list of attributes: a byte for the form, a byte
for the kind, two for the payload's length, the payload; those read here hold (symbol, value). The
kinds are as `cuobjdump --dump-elf` names them (EIATTR_REGCOUNT, EIATTR_FRAME_SIZE), and the values
are those of `cuobjdump --dump-resource-usage`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11
SIZED = 4
"""The form of an attribute whose payload follows its length; others hold the value in its place."""

HEADER, SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<II16xQQ24x")
"""ELF64: the table of sections (offset; size of an entry, entries, entry of the names), and of a
section its name, type, offset and size.
"""


@dataclass(frozen=True)
class Usage:
    """Of one thread: registers, and bytes of stack (local arrays, and registers that spilled)."""

    registers: int
    stack: int


def usage(image: bytes) -> Usage:
    """What a thread of the one kernel of a cubin takes.

    Raises ValueError if it has no such attributes.
    """
    found: dict[int, int] = {}
    try:
        for kind, payload in _attributes(_section(image, b".nv.info")):
            if kind in (REGISTER_COUNT, FRAME_SIZE):
                _, found[kind] = struct.unpack("<II", payload)
        return Usage(found[REGISTER_COUNT], found[FRAME_SIZE])
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"not a cubin with one kernel: {error!r}") from error


def _section(image: bytes, wanted: bytes) -> bytes:
    """The contents of a section, by its name. Raises KeyError if there is none."""
    table, entry, count, names = HEADER.unpack_from(image)
    sections = [SECTION.unpack_from(image, table + entry * index) for index in range(count)]
    _, _, strings, length = sections[names]
    text = image[strings : strings + length]
    for name, _, offset, size in sections:
        if text[name : text.index(b"\0", name)] == wanted:
            return image[offset : offset + size]
    raise KeyError(wanted)


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each attribute."""
    position = 0
    while position < len(section):
        form, kind, length = struct.unpack_from("<BBH", section, position)
        position += 4
        size = length if form == SIZED else 0
        yield kind, section[position : position + size]
        position += size
