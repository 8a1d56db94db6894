"""heapq and bisect: native on what compares natively; the program's own comparisons break."""

from __future__ import annotations

import bisect
import heapq
from typing import TYPE_CHECKING, Any

from flambeau_capture.interpreter.native import InterpretedCallable
from flambeau_capture.interpreter.operations import compares_in_python
from flambeau_capture.interpreter.substitutes.registry import substitute_if_new
from flambeau_capture.reasons import GraphBreak

if TYPE_CHECKING:
    from flambeau_capture.interpreter.machine import Machine


def _on_plain_items(function: Any) -> None:
    def substitute(machine: Machine, args: Any, kwargs: Any) -> Any:
        if any(compares_in_python(machine, arg) for arg in args):
            raise GraphBreak(
                "unknown-c-function", f"{function.__name__} of what is compared by Python or torch"
            )
        if kwargs.get("key") is not None:
            kwargs = {**kwargs, "key": InterpretedCallable(machine, kwargs["key"])}
        return function(*args, **kwargs)

    substitute_if_new(function, substitute)


for _function in (
    heapq.heappush, heapq.heappop, heapq.heapify, heapq.heapreplace, heapq.heappushpop, bisect.bisect_left, bisect.bisect_right,
    bisect.insort_left, bisect.insort_right,
    heapq._heapify_max, heapq._heappop_max, heapq._heapreplace_max,  # type: ignore[attr-defined]
):  # fmt: skip
    _on_plain_items(_function)
