"""What is expected of a call from its arguments alone: on a CPU, kernels of LSTMs only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau import expected_work
from flambeau_runtime import cuda
from flambeau_runtime.build import cpp


class Strange(torch.Tensor):
    """A subclass whose attributes are code of the program."""

    @classmethod
    def __torch_function__(cls, *arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("looked at")


def test_tensors_of_arguments() -> None:
    x, y = torch.randn(2), nn.Parameter(torch.randn(3))
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    strange = torch.randn(2).as_subclass(Strange)
    arguments = (x, y, [x, 1, strange], (y, "a"), {"x": x}, strange, 3, None, model, nn.ReLU())
    found = [one for argument in arguments for one in expected_work._plain_tensors(argument)]
    wanted = [x, y, x, y, model[1].weight]
    assert len(found) == len(wanted)
    assert all(one is other for one, other in zip(found, wanted, strict=True))


def test_a_program_on_a_cpu_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(device: torch.device) -> None:
        raise AssertionError(f"for {device}")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "expect_kernels", started)
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), torch.randn(1, 2, 5, 5)
    with torch.no_grad():
        compiled = flambeau.compile(model, options={"graph_cache": False})
        torch.testing.assert_close(compiled(x), model(x))


class Tagger(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, 2, **settings)
        self.head = nn.Linear(settings.get("proj_size") or 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


ONEDNN = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts whose build begins while a frame is captured."""
    texts: list[str] = []
    monkeypatch.setattr(cpp, "build_ahead", lambda each, options: texts.extend(each))
    return texts


@ONEDNN
@pytest.mark.parametrize("trains", [False, True])
def test_kernels_of_lstms_are_built_ahead(
    trains: bool, ahead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    begin = cpp.begin_build
    monkeypatch.setattr(
        cpp, "begin_build", lambda texts, *more: built.extend(texts) or begin(texts, *more)
    )
    model, x = Tagger(), torch.randn(5, 3, 4)
    compiled = flambeau.compile(model, options={"graph_cache": False})
    with torch.set_grad_enabled(trains):
        result = compiled(x)
        torch.testing.assert_close(result, model(x))
    if trains:
        result.sum().backward()
    assert len(ahead) == (3 if trains else 2)
    assert set(ahead) <= set(built), "other kernels were expected than the program has"


@ONEDNN
@pytest.mark.parametrize(
    ("settings", "dtype", "autocast"),
    [
        ({"proj_size": 3}, torch.float32, False),
        ({}, torch.float64, False),
        ({}, torch.float32, True),
    ],
)
def test_other_lstms_are_not(
    settings: dict[str, int], dtype: torch.dtype, autocast: bool, ahead: list[str]
) -> None:
    model, x = Tagger(**settings).to(dtype), torch.randn(5, 3, 4, dtype=dtype)
    compiled = flambeau.compile(model, options={"graph_cache": False})
    with torch.no_grad(), torch.autocast("cpu", enabled=autocast):
        torch.testing.assert_close(compiled(x), model(x), rtol=0.02, atol=0.02)
    assert not ahead


class Overriding(nn.Module):
    """A module whose walks are code of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 3))

    def modules(self) -> Any:
        raise AssertionError("walked")

    named_modules = modules


def test_modules_are_looked_at_without_code_of_the_program() -> None:
    module = Overriding()
    assert list(expected_work._plain_tensors(module)) == [module.below[0].weight]
    if torch.backends.mkldnn.is_available():
        weights = list(expected_work._lstm_weights(module))
        assert len(weights) == 1
        assert weights[0] is module.below[1].weight_hh_l0


def test_modules_that_are_not_whole() -> None:
    """A module before its __init__, one that is its own child, an LSTM without a setting."""
    bare, circular, stripped = nn.Linear.__new__(nn.Linear), nn.Sequential(), nn.LSTM(2, 3)
    circular.append(circular)
    del stripped.hidden_size
    compiled = flambeau.compile(lambda module, x: x + 1, options={"graph_cache": False})
    for module in (bare, circular, stripped):
        assert list(compiled(module, torch.ones(2))) == [2, 2]
