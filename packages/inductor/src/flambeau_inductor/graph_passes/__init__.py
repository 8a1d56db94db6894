"""Passes on the graph of primitives before it is lowered; `pipeline.GRAPH_PASSES` lists them."""
