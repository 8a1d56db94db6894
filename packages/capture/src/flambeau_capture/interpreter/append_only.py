"""Lists of the program that a frame only appends to: their contents and length are neither read nor guarded.

    self.losses.append(x)          # LOAD_ATTR losses, then LOAD_ATTR append: the list itself goes nowhere else

Where the instruction after a load takes `append` or `extend` of the value (or only asks whether it is None), the load gives an
AppendTarget for a list that existed before the call.  What is appended is replayed at exit.  As soon as the list is read elsewhere it
gets its usual shadow, with what was appended in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.classes import Native

if TYPE_CHECKING:
    from flambeau_capture.interpreter.decode import DecodedCode
    from flambeau_capture.interpreter.frame import Frame
    from flambeau_capture.origins import Origin

APPENDING = {"append": list.append, "extend": list.extend}
_METHOD_LOADS = {
    "LOAD_METHOD": ("append", "extend"),
    "LOAD_ATTR": (("append", True), ("extend", True)),
}
_NONE_TESTS = frozenset(
    {
        "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE",
        "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
    }
)  # fmt: skip
_LOCAL_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK"})
_LOCALS = frozenset(
    {"STORE_FAST", "DELETE_FAST", "MAKE_CELL", "LOAD_CLOSURE", "LOAD_FAST_AND_CLEAR"}
)
_LOCAL_PAIRS = frozenset({"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"})


class AppendTarget(Native):
    """Stands for a list that existed before the call, `real`; `items` were appended in the frame."""

    __slots__ = ("items", "origin", "real", "shadow")

    def __init__(self, real: list[Any], origin: Origin) -> None:
        self.real, self.origin = real, origin
        self.items: list[Any] = []
        self.shadow: list[Any] | None = None
        """The list that the frame sees, once it has read it elsewhere."""

    def extend(self, items: list[Any]) -> None:
        """Note what is appended."""
        (self.items if self.shadow is None else self.shadow).extend(items)

    @staticmethod
    def instance_of(classes: Any) -> bool:
        return issubclass(list, classes)


def is_for_append(code: DecodedCode, index: int) -> bool:
    """Whether the instruction at `index` takes `append` or `extend` of the value on the stack, or tests it for None."""
    name = code.names_at[index]
    return name in _NONE_TESTS or (
        name in _METHOD_LOADS and code.instructions[index][1] in _METHOD_LOADS[name]
    )


def expect_append(frame: Frame) -> bool:
    """Before a load: whether what it gives is only appended to; the load may then give an AppendTarget."""
    if is_for_append(frame.code, frame.ip):
        frame.machine.append_only = (frame, frame.ip)
        return True
    return False


def is_expected(append_only: tuple[Frame | None, int] | None, frame: Frame | None) -> bool:
    """Whether what is being loaded is only appended to: the expectation is of this very instruction (it may have raised before)."""
    if append_only is None or append_only[0] is not frame:
        return False
    return frame is None or append_only[1] == frame.ip


def is_only_appended(code: DecodedCode, local: int) -> bool:
    """Whether a function's code does nothing with a local but append to it (or test it for None)."""
    found = False
    for index, (name, (_, argument)) in enumerate(
        zip(code.names_at, code.instructions, strict=True)
    ):
        if name in _LOCAL_LOADS and argument == local:
            loads = True
        elif name in _LOCALS and argument == local:
            return False
        elif name in _LOCAL_PAIRS and local in argument:
            loads = name == "STORE_FAST_LOAD_FAST" and argument[1] == local != argument[0]
            if not loads:
                return False
        else:
            continue
        if loads and not is_for_append(code, index + 1):
            return False
        found = True
    return found
