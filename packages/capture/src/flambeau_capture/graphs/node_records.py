"""The classes of nodes that hold graphs, and of their parts, by name: what is written of a graph as
data names them so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flambeau_capture.graphs import control_flow, custom_function, higher_order

NODE_RECORDS: dict[str, Any] = {
    name: kind
    for module in (higher_order, custom_function, control_flow)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
"""Dataclasses, whose fields are graphs, plain data, or such records."""
