"""What the worker process does with a message: compile the graph, so that its compiled form and its
kernels are in the cache.
"""

from __future__ import annotations

from typing import Any

from flambeau import graph_keys, stored_graphs
from flambeau.backends import inductor
from flambeau.graph_messages import decode_message, state_of_message
from flambeau.not_stored import NotStored


def compile_message(data: dict[str, Any]) -> dict[str, Any]:
    """Compile what a message holds; what was stored, or why nothing was."""
    with state_of_message(data):
        gm, examples, context = decode_message(data)
        try:
            key = graph_keys.key_of_graph(gm, examples, context)
        except NotStored as error:
            return {"stored": str(error)}
        if key != data["key"]:
            return {"stored": "the graph, or torch's state, differs in the worker process"}
        if stored_graphs.is_stored(key, context):
            return {"stored": "written"}
        inductor(context)(gm, examples)
    (graph,) = context.report.graphs
    if graph.fallback is not None:
        return {"stored": str(graph.fallback)}
    return {"stored": "written", "programs": len(graph.programs)}
