"""Calls that raise after they have written to a tensor, and whose error the program handles.

    try:
        y.add_(1)            # an inference tensor, outside inference mode: torch adds, then raises
    except RuntimeError:     ->      failing_add_(y)
        ...

What was written stays written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, eq=False)
class FailingCall:
    """`function`, whose RuntimeError has been handled when it was captured."""

    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return f"failing_{getattr(self.function, '__name__', 'call')}"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            self.function(*args, **kwargs)
        except RuntimeError:
            return
