"""Objects that ask the driver for something when they end: graphs, pools of memory, events.

A forked process cannot ask the driver for anything, and torch ends it if it tries. The collector
may find such objects there, though nothing in the child names them.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any


class DriverObjects:
    """Keeps such objects alive; in a forked process they never end."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process != os.getpid():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.items))
