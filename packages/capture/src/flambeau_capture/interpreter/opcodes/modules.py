"""Import statements inside functions: modules are imported for real (once, as Python does), and read through their globals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flambeau_capture.interpreter.attributes import load_attr

if TYPE_CHECKING:
    from flambeau_capture.interpreter.frame import Frame


def IMPORT_NAME(frame: Frame, arg: str) -> None:
    names, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(__import__(arg, frame.globals, None, names, level))


def IMPORT_FROM(frame: Frame, arg: str) -> None:
    module = frame.stack[-1]
    try:
        found = load_attr(frame.machine, module, arg)
    except AttributeError:
        found = sys.modules.get(f"{module.__name__}.{arg}")
        if found is None:
            raise ImportError(
                f"cannot import name {arg!r} from {module.__name__!r}", name=module.__name__
            ) from None
    frame.stack.append(found)
