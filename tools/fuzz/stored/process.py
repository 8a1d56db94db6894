"""One process of the stored fuzz: `python -m tools.fuzz.stored.process FOLDER NAME...` compares
each module's ROOT, compiled, with eager. It prints one JSON object: by name, what differs, or
"", and what became of the calls.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import sys
import warnings
from typing import Any

import numpy as np
import torch

import flambeau
from flambeau.report import report_of
from flambeau_capture.compiled import state_of

_TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def _seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def _outcome(function: Any, arguments: Any) -> tuple[Any, Any]:
    """The result and gradients of a call, or the type of what it raises."""
    _seed()
    x = arguments()
    try:
        result = function(x)
        gradients = None
        if isinstance(result, torch.Tensor) and result.requires_grad and x.is_leaf:
            (gradients,) = torch.autograd.grad(result.sum(), x, allow_unused=True)
    except Exception as error:  # which the other call raises, too
        return type(error).__name__, str(error)
    return result, gradients


def _difference(found: tuple[Any, Any], expected: tuple[Any, Any]) -> str:
    if isinstance(found[0], str) or isinstance(expected[0], str):
        return "" if found[0] == expected[0] else f"{found} instead of {expected}"
    try:
        torch.testing.assert_close(found, expected, equal_nan=True, **_TOLERANCE)
    except AssertionError as error:
        return str(error)
    return ""


def outcome(name: str) -> dict[str, Any]:
    """What differs in a program, and the events of its compiled function."""
    module = importlib.import_module(name)
    differences, entries = [], []
    with contextlib.ExitStack() as stack:
        for context in module.CONTEXTS():
            stack.enter_context(context)
        compiled = flambeau.compile(module.ROOT, **module.OPTIONS)
        for argument in range(len(module.ARGUMENTS())):
            arguments = lambda at=argument: module.ARGUMENTS()[at]  # noqa: E731
            for _ in range(2):  # the second call is served by the entry
                found = _outcome(compiled, arguments)
                expected = _outcome(module.ROOT, arguments)
                if text := _difference(found, expected):
                    differences.append(text)
    events = state_of(getattr(compiled, "_compiled", compiled))
    kinds = [event.kind for event in events.events] if events is not None else []
    if events is not None:
        entries = [event.entry.stored for event in events.events if event.entry is not None]
        graphs = report_of(compiled).graphs
        entries += [info.stored for graph in graphs for _, info in graph.piece_entries()]
    return {"differs": "; ".join(differences), "events": kinds, "entries": entries}


def main() -> None:
    folder, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    warnings.simplefilter("ignore")
    # The compiler is imported before a program replaces functions that it imports.
    flambeau.compile(torch.sin, options={"graph_cache": False})(torch.ones(1))
    outcomes = {}
    for name in names:
        try:
            outcomes[name] = outcome(name)
        except Exception as error:  # of the program itself
            outcomes[name] = {
                "differs": f"{type(error).__name__}: {error}",
                "events": [],
                "entries": [],
            }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
