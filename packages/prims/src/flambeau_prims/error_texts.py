"""Errors of torch and CPython that only their texts tell apart.

C and C++ code raises one class for many causes. This table is the only place that reads such texts:
whoever handles an error asks an entry of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorText:
    """The errors of a class whose message contains one of `texts`."""

    error: type[Exception]
    texts: tuple[str, ...]

    def matches(self, error: BaseException) -> bool:
        """Whether `error` is one of these."""
        return isinstance(error, self.error) and any(text in str(error) for text in self.texts)


SYMBOLIC_SIZES_REFUSED = ErrorText(
    RuntimeError,
    ("with symbolic sizes", "SymIntArrayRef expected", "but instead found type 'SymInt'"),
)
"""A C++ function takes concrete sizes only."""

SYMBOLIC_INDEX_REFUSED = ErrorText(Exception, ("(got SymInt)",))
"""An index was computed from data: torch asked for its value and dropped the answer."""

SYMBOLIC_KEY_REFUSED = ErrorText(
    TypeError, ("unhashable type: non-nested SymInt", "unhashable type: 'SymInt'")
)
"""A symbolic size was hashed."""

ARGUMENT_TYPES_REFUSED = ErrorText(TypeError, ("have invalid types",))
"""No overload of a torch function takes these arguments; the text names their types."""

SCRIPT_REFUSED = ErrorText(RuntimeError, ("failed in the TorchScript interpreter",))
"""An operation of a TorchScript function failed, where the function itself raises nothing."""

HOST_MEMORY_EXHAUSTED = ErrorText(RuntimeError, ("can't allocate memory",))
"""Torch's CPU allocator failed; it has no class like torch.OutOfMemoryError."""


def type_refused(refused: type) -> ErrorText:
    """The error of a C function that was given an instance of `refused` for a builtin type."""
    return ErrorText(TypeError, (refused.__name__,))
