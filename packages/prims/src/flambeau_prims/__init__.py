"""What an operator is: specs, symbolic sizes, fake tensors, the tracer, shape rules, primitives,
decompositions. See README.md.
"""

from __future__ import annotations

from flambeau_prims._version import __version__
from flambeau_prims.check import GraphError, check_graph
from flambeau_prims.custom_operators import fake_kernel
from flambeau_prims.decompose import decompose
from flambeau_prims.evaluate import run_graph
from flambeau_prims.fake import FakeTensor, fake_like
from flambeau_prims.graph import Graph, Node, Value
from flambeau_prims.primitives import PRIMS, Prim
from flambeau_prims.rules.registry import rule_for_others
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import Unsupported

__all__ = [
    "PRIMS", "Expr", "FakeTensor", "Graph", "GraphError", "Node", "Prim", "SizeEnv", "Spec",
    "Tracer", "Unsupported", "Value", "__version__", "check_graph", "decompose", "fake_like",
    "run_graph", "spec_of",
]  # fmt: skip

rule_for_others(fake_kernel)  # here, since it needs the tracer, which needs the rules
