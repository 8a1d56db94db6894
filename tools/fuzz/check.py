"""One random program compared, and shrunk while it still differs."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.differential import differences
from tools.fuzz.generate import generate, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.fuzz.generate import Source, SourceT


def difference(source: Source, **options: Any) -> str | None:
    """The first difference between compiled and eager, or None; also None for a program that is not
    valid Python.
    """
    try:
        scope = source.load()
    except SyntaxError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(
                scope["program"],
                scope["make"],
                calls=1,
                factor=16.0,
                least=1.0,
                losses=source.loss_numbers(),
                **options,
            )
    except Exception as error:
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    if any(_REFUSED in text for text in found):
        found = [text for text in found if "where eager has None" not in text]
    found = [text for text in found if _REFUSED not in text]
    return found[0] if found else None


_REFUSED = "grad_error: None, not RuntimeError: Found dtype"
"""Torch 2.11 has no gradient of a loss of two dtypes; a compiled program has it."""


def shrink(
    source: SourceT,
    differ: Callable[[SourceT], str | None],
    plainer: Callable[[SourceT], Iterator[SourceT]],
    seconds: float = math.inf,
) -> SourceT:
    """A smaller program that differs too; each step drops a statement or an output, or is one of
    `plainer`. A step begins within these seconds.
    """
    end = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in itertools.chain(_shorter(source), plainer(source)):
            if time.monotonic() > end:
                return source
            text = differ(smaller)
            if text is not None and "NameError" not in text:
                source, progress = smaller, True
                break
    return source


def _shorter(source: SourceT) -> Iterator[SourceT]:
    for number in reversed(range(len(source.statements))):
        yield without(source, number)
    if len(source.outputs) > 1:
        for number in range(len(source.outputs)):
            yield replace(source, outputs=source.outputs[:number] + source.outputs[number + 1 :])
    variables = [f"v{number}" for number in range(len(source.statements))]
    for name in variables:
        if name not in source.outputs:
            yield replace(source, outputs=(name,))


def _plainer(source: Source) -> Iterator[Source]:
    for number, text in enumerate(source.inputs):
        if text not in ("torch.randn(3, 5)", "torch.randn(3, 5).requires_grad_()"):
            for simple in ("torch.randn(3, 5)", "torch.randn(3, 5).requires_grad_()"):
                yield replace(
                    source, inputs=(*source.inputs[:number], simple, *source.inputs[number + 1 :])
                )
    for number, text in enumerate(source.inputs):
        if text.endswith(".requires_grad_()"):
            plain = text.removesuffix(".requires_grad_()")
            yield replace(
                source, inputs=(*source.inputs[:number], plain, *source.inputs[number + 1 :])
            )


def check(seed: int, **options: Any) -> str | None:
    """The program of this seed, shrunk, and how it differs; None if it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = generate(seed)
    text = difference(source, **options)
    if text is None:
        return None

    def differ(smaller: Source) -> str | None:
        return difference(smaller, **options)

    small = shrink(source, differ, _plainer)
    return f"seed {seed}: {differ(small)}\n\n{small.text()}"
