"""Strides that a reshape keeps."""

from __future__ import annotations

from flambeau_prims.rules.view import view_stride as reshape_stride

__all__ = ["reshape_stride"]
