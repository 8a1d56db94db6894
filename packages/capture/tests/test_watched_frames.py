"""Debuggers, tracers, collectors and tracebacks see the frames and code objects that capture makes
as they see any others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import watched_frames

from flambeau_capture.bytecode.checker import check_code


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each pair runs in a fork")
def test_nothing_that_looks_at_frames_is_hurt():
    ended = subprocess.run(
        [sys.executable, str(Path(watched_frames.__file__))],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def sample(a, /, b=1, *rest, c=2, **named):
    def inner():
        return a, c

    for item in rest:
        try:
            yield item, inner
        except ValueError as error:
            raise KeyError(named) from error


CHANGES = {
    "no COPY_FREE_VARS": lambda: outer_and_inner()[1].replace(
        co_code=b"\x09\x00" * 2 + outer_and_inner()[1].co_code[4:]
    ),
    "too little stack": lambda: sample.__code__.replace(co_stacksize=1),
    "too few constants": lambda: sample.__code__.replace(co_consts=()),
    "short location table": lambda: sample.__code__.replace(co_linetable=b""),
}


def outer_and_inner():
    outer = sample.__code__
    inner = next(item for item in outer.co_consts if isinstance(item, type(outer)))
    return outer, inner


def test_code_of_the_interpreter_passes_the_checker():
    for code in outer_and_inner():
        check_code(code)


@pytest.mark.parametrize("change", CHANGES)
def test_code_that_is_wrong_does_not(change):
    with pytest.raises(ValueError, match="sample"):
        check_code(CHANGES[change]())
