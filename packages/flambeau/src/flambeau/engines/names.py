"""Which engines there are, the packages that they need, and the backends that are retired; nothing
of the engines is imported here.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineName:
    """`modules` are imported by the engine, `extra` is the extra of `flambeau` that installs them,
    `packages` are their names on the package index.
    """

    modules: tuple[str, ...]
    extra: str
    packages: str


ENGINES = {
    "onnxrt": EngineName(("onnxruntime", "onnxscript"), "onnxrt", "onnxruntime onnxscript"),
    "openvino": EngineName(("openvino",), "openvino", "openvino"),
    "openxla": EngineName(("torch_xla",), "openxla", "torch_xla"),
    "tensorrt": EngineName(("torch_tensorrt",), "tensorrt", "torch-tensorrt"),
    "tvm": EngineName(("tvm",), "tvm", "apache-tvm"),
}
"""Each engine's backend name; `flambeau.engines.<name>` builds its programs."""

_NVFUSER = 'NVIDIA and PyTorch retired it; backend="inductor" (the default) fuses kernels for GPUs'
RETIRED = {
    "ipex": "Intel moved its optimisations into PyTorch and retired the extension; "
    'backend="inductor" (the default) calls oneDNN; backend="openvino" is Intel\'s compiler',
    "nvfuser": _NVFUSER,
    "nvprims": _NVFUSER,
    "nvprims_aten": _NVFUSER,
    "nvprims_nvfuser": _NVFUSER,
    "aot_ts_nvfuser": _NVFUSER,
    "ts_nvfuser": _NVFUSER,
    "aot_ts": 'TorchScript is deprecated; backend="aot_eager" runs the same graphs without it',
    "ts": 'TorchScript is deprecated; backend="eager" runs the same graphs without it',
    "fx2trt": 'backend="tensorrt" replaces it',
    "torch2trt": 'backend="tensorrt" replaces it',
    "onnx": 'backend="onnxrt" replaces it',
}
"""Names from documents of PyTorch that no package provides any more, and what replaces each."""


class MissingEngine(ImportError):
    """A backend was named whose package is not installed."""


def check_installed(name: str) -> None:
    """MissingEngine, with the command to run, unless an engine's packages are installed."""
    engine = ENGINES[name]
    missing = [module for module in engine.modules if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingEngine(
            f"backend {name!r} needs {engine.packages}, and {', '.join(missing)} is not "
            f'installed: pip install "flambeau[{engine.extra}]", or pip install {engine.packages}'
        )


def check_not_retired(name: str) -> None:
    """ValueError, with the replacement, for a backend that is retired upstream."""
    if name in RETIRED:
        raise ValueError(f"backend {name!r} is retired: {RETIRED[name]}")
