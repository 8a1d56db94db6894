"""Messages between a process and its worker process, over pipes: 8 bytes of length, then JSON."""

from __future__ import annotations

import json
import os
from typing import Any

HEAD = 8


def read_frame(descriptor: int) -> dict[str, Any] | None:
    """The next message; None at the end."""
    head = _read(descriptor, HEAD)
    content = None if head is None else _read(descriptor, int.from_bytes(head, "little"))
    return None if content is None else json.loads(content)


def _read(descriptor: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write_frame(descriptor: int, data: dict[str, Any]) -> None:
    """Write a message."""
    content = json.dumps(data, separators=(",", ":")).encode()
    view = memoryview(len(content).to_bytes(HEAD, "little") + content)
    while view:
        view = view[os.write(descriptor, view) :]
