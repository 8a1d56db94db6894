"""What a recording keeps alive is freed with it, but never in a forked process."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

import pytest

from flambeau_runtime.graph_launch.device import Timing
from flambeau_runtime.graph_launch.driver_objects import DriverObjects
from flambeau_runtime.graph_launch.record import _Memory

if TYPE_CHECKING:
    from collections.abc import Callable


class Item:
    """A graph or pool, whose end would call the driver."""


def timing(*events: Item) -> Timing:
    """Of a call that nobody waited for."""
    return Timing(0.0, DriverObjects(*events))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("keep", [_Memory, DriverObjects, timing])
def test_a_forked_process_frees_nothing(keep: Callable[[Item], object]) -> None:
    item = Item()
    freed = weakref.ref(item)
    memory = keep(item)
    del item
    pid = os.fork()
    if pid == 0:
        del memory
        os._exit(0 if freed() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert freed() is not None
    del memory
    assert freed() is None
