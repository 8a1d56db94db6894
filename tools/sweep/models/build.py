"""From a row of the table to a model with small random weights, and to one call's inputs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import transformers

from tools.sweep.models.table import SMALL, Architecture

if TYPE_CHECKING:
    from tools.sweep.models.inputs import Inputs


def build(architecture: Architecture) -> tuple[torch.nn.Module, Inputs]:
    """The model, its weights drawn from seed 0, and inputs for it."""
    model_class = getattr(transformers, architecture.class_name)
    config_class = model_class.config_class
    torch.manual_seed(0)
    model = model_class(config_class(**_settings(config_class, architecture.overrides)))
    return model, architecture.inputs()


def _settings(config_class: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """Those of SMALL that the configuration knows as plain values, and the overrides."""
    usual = config_class()
    parameters = inspect.signature(config_class.__init__).parameters
    renamed = getattr(config_class, "attribute_map", {})
    settings: dict[str, Any] = {}
    for name, value in SMALL.items():
        now = getattr(usual, name, None)
        known = name in parameters or (hasattr(usual, name) and name not in renamed)
        if not known or isinstance(now, (list, tuple, dict)):
            continue
        if name == "sliding_window" and now is None:
            continue
        settings[name] = value
    settings.update(overrides)
    return {
        name: value
        for name, value in settings.items()
        if value is not None or name not in overrides
    }
