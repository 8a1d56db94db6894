"""The programs whose speed a page on torch.compile's interface measures: a sine and a cosine of one
number, ResNet-18, BERT, and a function of NumPy.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from tools.bench.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    Program: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...]]"

MODES = ("default", "reduce-overhead", "max-autotune")


def waves(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.cos(x)


def correlation(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Normalised columns, the sum of all products in a row, clipped, and a penalty."""

    def normalised(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        deviation = values.std(axis=0)
        deviation[deviation == 0] = 1
        return (values - values.mean(axis=0)) / deviation

    a, b = normalised(left), normalised(right)
    products = np.sum(a[:, :, None] * b[:, None, :], axis=(-2, -1))
    result = np.exp(np.clip(products, -1, 1))
    result += 0.001 * np.sum(a**2 + b**2, axis=1)
    return result


def _waves(*, small: bool) -> Program | None:
    return waves, (torch.tensor(1),)


def _resnet18(*, small: bool) -> Program | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import ResNetConfig, ResNetModel

    sizes = [64, 128, 256, 512]
    config = ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=sizes, layer_type="basic", return_dict=False
    )
    shape = (1, 3, 32, 32) if small else (16, 3, 224, 224)
    return ResNetModel(config).eval(), (torch.randn(shape),)


def _bert(*, small: bool) -> Program | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} if small else {}
    model = BertModel(BertConfig(return_dict=False, **sizes)).eval()
    return model, (torch.randint(0, 1000, (1, 8)),)


def _numpy(*, small: bool) -> Program | None:
    rows, columns = (16, 12) if small else (1024, 640)
    draw = np.random.default_rng(0).standard_normal
    return correlation, (draw((rows, columns)), draw((rows, columns)))


DOCUMENT_CASES: dict[str, Callable[..., Program | None]] = {
    "sin": _waves, "resnet18": _resnet18, "bert": _bert, "numpy": _numpy,
}  # fmt: skip
"""Each program, and its arguments; None where its package is not installed."""


def document_table(cases: list[str], rounds: int) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: ms a call of eager and of each mode, called in turn, and the time saved in
    the best mode, as the page states it.
    """
    import flambeau

    rows = []
    for name in cases:
        program = DOCUMENT_CASES[name](small=False)
        if program is None:
            continue
        fn, args = program
        calls = {"eager": partial(fn, *args)}
        for mode in MODES:
            calls[mode] = partial(flambeau.compile(fn, mode=mode), *args)
        with torch.no_grad():
            seconds = interleave(calls, device="cpu", rounds=rounds)
        saved = 1 - min(seconds[mode] for mode in MODES) / seconds["eager"]
        rows.append([name, *(f"{value * 1e3:.4f}" for value in seconds.values()), f"{saved:.0%}"])
    return ["program", "eager ms", *(f"{mode} ms" for mode in MODES), "saved"], rows
