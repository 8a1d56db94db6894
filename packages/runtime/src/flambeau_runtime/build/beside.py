"""A call that runs in a thread beside its caller's."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def beside(call: Callable[[], T]) -> Callable[[], T]:
    """Begin a call, in a thread and in a copy of this context; what waits for its end and returns
    its result, or raises its error. Where no thread can be started, the call has ended already.
    """
    future: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="flambeau-build", daemon=True).start()
    except RuntimeError:  # there are too many threads
        run()
    return future.result
