"""What a recording keeps alive is freed with it, but never in a forked process."""

from __future__ import annotations

import os
import weakref

import pytest

from flambeau_runtime.graph_launch.record import _Memory


class Item:
    """A graph or pool, whose end would call the driver."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_frees_nothing() -> None:
    item = Item()
    freed = weakref.ref(item)
    memory = _Memory(item)
    del item
    pid = os.fork()
    if pid == 0:
        del memory
        os._exit(0 if freed() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert freed() is not None
    del memory
    assert freed() is None
