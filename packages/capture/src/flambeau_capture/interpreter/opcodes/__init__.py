"""Opcode handlers, named as the opcodes, for CPython 3.11, 3.12 and 3.13; one file per concern.

`HANDLERS[op]` is the handler of opcode number `op` on the running Python; opcodes without one break
the graph. May use branches and exit, and what these use; not substitutes.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any, NoReturn

from flambeau_capture.interpreter.opcodes import (
    containers,
    control_flow,
    exceptions,
    functions,
    load_store,
    operators,
)
from flambeau_capture.reasons import unsupported_instruction

if TYPE_CHECKING:
    from flambeau_capture.interpreter.code.decode import Handler
    from flambeau_capture.interpreter.machine import Frame

_FILES = (
    containers, control_flow, exceptions, functions, load_store, operators,
)  # fmt: skip


def _unsupported(name: str) -> Handler:
    def handler(frame: Frame, arg: Any) -> NoReturn:
        raise unsupported_instruction(name)

    return handler


def _build() -> list[Handler]:
    by_name: dict[str, Handler] = {}
    for file in _FILES:
        for name, value in vars(file).items():
            if name.isupper() and callable(value) and value.__module__ == file.__name__:
                if name in by_name:
                    raise ValueError(f"two handlers for {name}")
                by_name[name] = value
    return [by_name.get(name) or _unsupported(name) for name in dis.opname]


HANDLERS: list[Handler] = _build()
