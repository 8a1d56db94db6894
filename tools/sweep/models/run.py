"""One architecture, eagerly and compiled, forward and training; the result is data that the driver
writes down.
"""

from __future__ import annotations

import copy
import random
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy
import torch

# The stages are imported before the processes of architectures are forked.
import flambeau.backends
import flambeau_capture.capture_stage  # noqa: F401
import flambeau_inductor.compile  # noqa: F401
from flambeau.report import report_of
from flambeau_capture import CaptureError, state_of
from tools.sweep.models.build import build
from tools.sweep.models.compare import differences, tensors
from tools.sweep.models.inputs import moved
from tools.sweep.models.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEDS = {"cpu": (2, 2, 3), "cuda": (2, 2, 3, 4, 4, 5, 6, 7)}
"""One for each step: the same numbers are drawn twice, then others. On a GPU the last steps are
launched as recorded graphs.
"""
OWN_WAY = "as eager where is_compiling() is true, not as eager"
"""The model asks, and computes something else: the results are those of an eager run that is told
so, too.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is called: "eval", "inference" or "train"; where; under autocast to bfloat16 or
    not.
    """

    mode: str
    device: str = "cpu"
    autocast: bool = False


def run(
    name: str, compiler: str, backend: str, modes: Sequence[str], device: str, autocast: bool
) -> dict[str, Any]:
    """{"eval": ..., "train": ...} for `compiler` "flambeau" or "torch" and each mode.

    Each has status ("whole", "breaks", "differs" or "error"; "not run" what transformers itself
    cannot run), causes (texts) and seconds; Flambeau's also what its graphs assume of data (texts),
    how often a step found other data, and of each entry, and each of a piece of its graph, if
    entries are stored, "read", "written" or why it is not stored.
    """
    warnings.simplefilter("ignore")
    try:
        model, inputs = build(TABLE[name])
        model, inputs = model.to(device), moved(inputs, device)
    except Exception as error:
        return {"eval": _not_run("build", error)}
    found: dict[str, Any] = {}
    for mode in modes:
        setting = Setting(mode, device, autocast)
        try:
            want = _run(copy.deepcopy(model), inputs, setting)
        except Exception as error:
            found[mode] = _not_run("eager", error)
            continue
        measure = _flambeau if compiler == "flambeau" else _torch
        started = time.perf_counter()
        found[mode] = measure(model, inputs, setting, want, backend)
        found[mode]["seconds"] = round(time.perf_counter() - started, 1)
    return found


def _not_run(stage: str, error: Exception) -> dict[str, Any]:
    """Nothing to compare with: transformers does not build the model, or not run it."""
    return {"status": "not run", "causes": [f"{stage}: {type(error).__name__}: {error}"[:300]]}


def _run(
    model: Any, inputs: dict[str, Any], setting: Setting, compiled: Any = None
) -> list[dict[str, torch.Tensor]]:
    """What the model gives, step by step: outputs, gradients, buffers, and the state of the
    generator.
    """
    model.train(setting.mode == "train")
    call = model if compiled is None else compiled
    steps = []
    cast = torch.autocast(setting.device, torch.bfloat16, enabled=setting.autocast)
    for seed in SEEDS[setting.device]:
        model.zero_grad()
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        own = copy.deepcopy(inputs)
        if setting.mode != "train":
            # Not inference_mode(False), which turns gradients on.
            with torch.inference_mode() if setting.mode == "inference" else torch.no_grad(), cast:
                output = call(**own)
            gathered = dict(tensors(output))
        else:
            with cast:
                output = call(**own)
            gathered = dict(tensors(output))
            _loss(gathered).backward()
            gathered |= {
                f"gradient of {name}": p.grad
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        gathered |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        on_gpu = setting.device == "cuda"
        gathered["generator"] = torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state()
        steps.append(gathered)
    return steps


def _loss(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number that depends on every output in a way of its own."""
    parts = [
        (t.nan_to_num(0, 0, 0).float() * _weights(t)).mean()
        for t in outputs.values()
        if t.is_floating_point() and t.requires_grad and t.numel()
    ]
    return torch.stack(parts).sum()


def _weights(t: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.shape)


def _flambeau(
    model: Any,
    inputs: dict[str, Any],
    setting: Setting,
    want: list[dict[str, torch.Tensor]],
    backend: str,
) -> dict[str, Any]:
    try:
        compiled, got = _captured(model, inputs, setting, backend, fullgraph=True)
    except CaptureError:
        try:
            compiled, got = _captured(model, inputs, setting, backend, fullgraph=False)
        except Exception as error:
            return _error(error)
    except Exception as error:
        return _error(error)
    different = _differences(model, inputs, setting, got, want)
    notes = []
    if different:
        with mock.patch("torch.compiler.is_compiling", lambda: True):
            own_way = _differences(
                model, inputs, setting, got, _run(copy.deepcopy(model), inputs, setting)
            )
        if own_way:
            return {"status": "differs", "causes": different[:3]}
        notes = [f"{OWN_WAY}: {different[0]}"]
    events = state_of(compiled._compiled).events
    causes = [event.text for event in events if event.kind in ("break", "limit")]
    graphs = report_of(compiled).graphs
    causes += [str(graph.fallback) for graph in graphs if graph.fallback]
    entries = state_of(compiled._compiled).entries
    assumptions = dict.fromkeys(str(item) for entry in entries for item in entry.info.assumptions)
    return {
        "status": "breaks" if causes else "whole",
        "causes": (notes + causes)[:3],
        "assumes": list(assumptions),
        "violated": sum(event.kind == "violated" for event in events),
        "stored": [entry.info.stored for entry in entries]
        + [info.stored for graph in graphs for _, info in graph.piece_entries()],
    }


def _captured(
    model: Any, inputs: dict[str, Any], setting: Setting, backend: str, *, fullgraph: bool
) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A compiled copy of the model, and what it gives."""
    mine = copy.deepcopy(model)
    compiled = flambeau.compile(mine, backend=backend, fullgraph=fullgraph)
    return compiled, _run(mine, inputs, setting, compiled)


def _error(error: Exception) -> dict[str, Any]:
    return {"status": "error", "causes": [f"{type(error).__name__}: {error}"[:500]]}


def _differences(
    model: Any,
    inputs: dict[str, Any],
    setting: Setting,
    got: list[dict[str, torch.Tensor]],
    want: list[dict[str, torch.Tensor]],
) -> list[str]:
    different = [
        text
        for mine, yours in zip(got, want, strict=True)
        for text in differences(mine, yours, None)
    ]
    if not different:
        return []
    # Most agree at once; the others are judged against float64.
    try:
        doubled = {
            name: value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }
        plain = replace(setting, autocast=False)
        exact = _run(copy.deepcopy(model).double(), doubled, plain)
    except Exception:
        return different
    return [
        text
        for mine, yours, truth in zip(got, want, exact, strict=True)
        for text in differences(mine, yours, truth)
    ]


def _torch(
    model: Any,
    inputs: dict[str, Any],
    setting: Setting,
    want: list[dict[str, torch.Tensor]],
    backend: str,
) -> dict[str, Any]:
    mine = copy.deepcopy(model)
    compiled = torch.compile(mine, fullgraph=True, backend="eager")
    try:
        _run(mine, inputs, setting, compiled)
    except Exception as error:
        kind = type(error).__name__
        broke = kind in ("Unsupported", "UserError") or "graph break" in str(error).lower()
        first = str(error).strip().partition("\n")[0]
        return {"status": "breaks" if broke else "error", "causes": [f"{kind}: {first}"[:300]]}
    return {"status": "whole", "causes": []}
