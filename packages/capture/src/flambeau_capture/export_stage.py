"""`export`, with all that captures a frame."""

from __future__ import annotations

from flambeau_capture import capture_stage
from flambeau_capture.exported.export import export

__all__ = ["capture_stage", "export"]
