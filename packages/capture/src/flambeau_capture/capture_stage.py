"""All of capture that runs only while a frame is captured: the interpreter, and the room of NumPy,
which importing this module registers.
"""

from __future__ import annotations

from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.numpy.library import wrap_numpy

__all__ = ["capture_frame", "wrap_numpy"]
