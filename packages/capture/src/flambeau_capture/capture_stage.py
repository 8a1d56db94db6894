"""All of capture that runs only while a frame is captured: the interpreter and its rooms, NumPy and
export, which importing this module registers.
"""

from __future__ import annotations

from flambeau_capture.exported.export import export
from flambeau_capture.interpreter.capture import capture_frame
from flambeau_capture.numpy.library import wrap_numpy

__all__ = ["capture_frame", "export", "wrap_numpy"]
