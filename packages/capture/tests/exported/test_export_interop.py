"""Exported graphs as torch.export's programs, and as ONNX where its packages are installed."""

from __future__ import annotations

import copy
import importlib.util
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.export
from exporting import Net
from torch import nn

from flambeau_capture import Dim, export, load
from flambeau_capture.exported.interop_torch import to_exported_program

if TYPE_CHECKING:
    from pathlib import Path

BATCH = Dim("batch", max=64)


def through_a_file(program: Any) -> Any:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer).module()


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_module() -> None:
    model = Net()
    shapes = {"x": {0: BATCH}, "mask": {0: BATCH}}
    exported = export(
        model, (torch.randn(6, 8),), {"mask": torch.randn(6, 1)}, dynamic_shapes=shapes
    )
    program = to_exported_program(exported)
    assert set(program.state_dict) == set(model.state_dict())
    twin, module = copy.deepcopy(model), through_a_file(program)
    for rows in (5, 9):
        x, mask = torch.randn(rows, 8), torch.randn(rows, 1)
        close(module(x, mask=mask), twin(x, mask=mask))
    for name, buffer in twin.named_buffers():
        close(dict(module.named_buffers())[name], buffer)
    with pytest.raises(Exception, match="64"):
        module(torch.randn(65, 8), mask=torch.randn(65, 1))


PROGRAMS: dict[str, tuple[Any, Any, Any]] = {
    "derived": (
        lambda x, y: x[: x.shape[0] // 2] * y,
        lambda n: (torch.randn(2 * n, 8), torch.randn(n, 8)),
        ({0: 2 * BATCH}, {0: BATCH}),
    ),
    "automatic": (lambda x, y: x @ y, lambda n: (torch.randn(n, 3), torch.randn(3, n)), Dim.AUTO),
    "ints": (
        lambda x, n: x * n + torch.zeros(n, 1),
        lambda n: (torch.randn(n, 3), n),
        ({0: BATCH}, BATCH),
    ),
    "nested": (
        lambda d, flag: (d["a"][0] + 1, [d["b"]], flag),
        lambda n: ({"a": [torch.randn(n, 3)], "b": torch.randn(2)}, True),
        {"d": {"a": [{0: BATCH}]}},
    ),
    "static": (lambda x: x.t() + 1, lambda n: (torch.randn(4, 3),), None),
    "several": (
        lambda *xs: torch.stack(xs).sum(0),
        lambda n: (torch.randn(n), torch.randn(n)),
        {"xs": ({0: BATCH}, {0: BATCH})},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    program, make, shapes = PROGRAMS[name]
    exported = export(program, make(4), dynamic_shapes=shapes)
    exported.save(tmp_path / "graph")
    for source in (exported, load(tmp_path / "graph")):
        module = through_a_file(to_exported_program(source))
        for rows in (4, 7):
            args = make(rows)
            close(module(*args), program(*args))


def test_keywords_of_a_function() -> None:
    def program(*xs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return xs[0] + named["y"]

    exported = export(program, (torch.randn(4),), {"y": torch.randn(4)}, dynamic_shapes=Dim.AUTO)
    module = to_exported_program(exported).module()
    x, y = torch.randn(6), torch.randn(6)
    close(module(x, y=y), x + y)


def test_what_torch_export_does_not_take() -> None:
    class Options:
        pass

    exported = export(lambda x, options: x + 1, (torch.randn(3), Options()))
    with pytest.raises(TypeError, match=r"options: torch\.export takes no .*Options"):
        to_exported_program(exported)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx, onnxscript or onnxruntime is not installed",
)
def test_onnx(tmp_path: Path) -> None:
    """The recipe of the README."""
    import onnxruntime

    model = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    exported = export(model, (torch.randn(6, 8),), dynamic_shapes=({0: BATCH},))
    torch.onnx.export(to_exported_program(exported), f=str(tmp_path / "model.onnx"), dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    x = torch.randn(11, 8)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)
