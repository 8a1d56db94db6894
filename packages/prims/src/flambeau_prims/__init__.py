"""What an operator is: specs, symbolic sizes, fake tensors, the tracer, shape rules, primitives,
decompositions. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_prims._version import __version__
from flambeau_prims.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flambeau_prims.check import GraphError, check_graph
    from flambeau_prims.decompose import decompose
    from flambeau_prims.evaluate import run_graph
    from flambeau_prims.fake import FakeTensor, fake_like
    from flambeau_prims.graph import Graph, Node, Value
    from flambeau_prims.primitives import PRIMS, Prim
    from flambeau_prims.sizes import Expr, SizeEnv
    from flambeau_prims.spec import Spec, spec_of
    from flambeau_prims.tracer import Tracer
    from flambeau_prims.unsupported import Unsupported

__all__ = [
    "PRIMS", "Expr", "FakeTensor", "Graph", "GraphError", "Node", "Prim", "SizeEnv", "Spec",
    "Tracer", "Unsupported", "Value", "__version__", "check_graph", "decompose", "fake_like",
    "run_graph", "spec_of",
]  # fmt: skip

lazy_exports(
    __name__,
    {
        "flambeau_prims.check": (
            "GraphError",
            "check_graph",
        ),
        "flambeau_prims.decompose": ("decompose",),
        "flambeau_prims.evaluate": ("run_graph",),
        "flambeau_prims.fake": (
            "FakeTensor",
            "fake_like",
        ),
        "flambeau_prims.graph": (
            "Graph",
            "Node",
            "Value",
        ),
        "flambeau_prims.primitives": (
            "PRIMS",
            "Prim",
        ),
        "flambeau_prims.sizes": (
            "Expr",
            "SizeEnv",
        ),
        "flambeau_prims.spec": (
            "Spec",
            "spec_of",
        ),
        "flambeau_prims.tracer": ("Tracer",),
        "flambeau_prims.unsupported": ("Unsupported",),
    },
)
