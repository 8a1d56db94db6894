"""Contexts that features of stored programs ask for, and a function that breaks graphs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

__all__ = [
    "FLAG_FILE", "default_dtype", "deterministic", "environment", "flag_file", "log_level",
    "matmul_precision", "opaque", "recursion_limit", "removed", "seeded", "threads",
]  # fmt: skip

FLAG_FILE = os.path.join(tempfile.gettempdir(), f"stored-fuzz-{os.getuid()}")


def opaque(n: int) -> int:
    """It breaks graphs."""
    sys._getframe(0)
    return n


def removed(handle: Any) -> contextlib.AbstractContextManager[Any]:
    """The hook of a handle, for a block."""
    return contextlib.closing(_Closing(handle))


class _Closing:
    def __init__(self, handle: Any) -> None:
        self.close = handle.remove


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    yield


def environment(value: str) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.dict(os.environ, STORED_FUZZ=value)


@contextlib.contextmanager
def flag_file(text: str) -> Iterator[None]:
    Path(FLAG_FILE).write_text(text)
    try:
        yield
    finally:
        Path(FLAG_FILE).unlink()


@contextlib.contextmanager
def log_level(level: int) -> Iterator[None]:
    log = logging.getLogger("stored_fuzz")
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)


@contextlib.contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
