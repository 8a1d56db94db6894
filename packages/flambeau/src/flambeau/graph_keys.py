"""The keys of captured graphs: equal only for graphs of which one compiled form is right for both.

A key is made of each node with its target and arguments (`graph_content`), the inputs as the
compiler sees them, and all else that the compiler depends on (`surroundings`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from flambeau.not_stored import NotStored
from flambeau.surroundings import state_of_backwards, surroundings
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime.cache import key_of

if TYPE_CHECKING:
    from torch import fx

    from flambeau.compile_context import Context

FORMAT = 3

_OF_THE_GRAPH = frozenset({"symbolic", "data-dependent", "foreign-call", "foreign-constant"})
"""Why a graph has no key while an entry that it belongs to may have one."""


def key_of_graph(gm: fx.GraphModule, examples: list[Any], context: Context) -> str:
    """The key of a captured graph; NotStored if it has none. The graph keeps it while it is
    compiled, for those that ask again.
    """
    _check_asked(context)
    if "key" not in gm.meta:
        content().check_static(gm)
        description = describe(gm, examples, context)
        gm.meta.update(key=key_of(*description), description=description)
    return str(gm.meta["key"])


def describe(gm: fx.GraphModule, examples: list[Any], context: Context) -> list[str]:
    """What a captured graph is, as JSON: all around its nodes, then each node."""
    made_of = content()
    around = [
        FORMAT,
        context.report.name,
        *surroundings(context),
        made_of.sizes_as_json(gm.meta.get("size_env")),
        made_of.meta_as_json(gm),
        made_of.inputs_as_json(examples),
    ]
    write = json.JSONEncoder(allow_nan=False, check_circular=False).encode
    return [write(part) for part in (around, *made_of.nodes_as_json(gm))]


def key_for_entry(
    reason: str, gm: fx.GraphModule, examples: list[Any], context: Context, *, split: bool
) -> str:
    """What `write_for_entry` makes the key of a graph of, that has none for this reason; "" where
    no entry may have it either. `split`: it is cut into pieces, which have keys themselves.
    """
    if reason not in _OF_THE_GRAPH and not (split and reason == "foreign-input"):
        return ""
    try:
        described = [
            FORMAT,
            context.report.name,
            *surroundings(context),
            [] if split else content().inputs_as_json(examples),
        ]
        if reason == "symbolic" and not split and has_backward(examples):
            description = describe(gm, examples, context)
            # As they are now: the compiler adds guards.
            sizes = content().sizes_as_json(gm.meta["size_env"])
            gm.meta.update(description=description, sizes=sizes)
    except NotStored:
        return ""
    return key_of(json.dumps(described, allow_nan=False, check_circular=False))


def has_backward(examples: list[Any]) -> bool:
    """Whether a graph may have a backward, for these inputs."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in examples
    )


def _check_asked(context: Context) -> None:
    options = context.options
    asked = options.runtime.graph_cache and options.runtime.use_cache
    if not asked or options.environment.check or context.report.folder:
        raise NotStored("not-asked")
    if options.inductor.tunes:
        raise NotStored("measured")
    if options.autograd.freezing:
        raise NotStored("frozen")


def key_of_backward(key: str, name: str, context: Context) -> str:
    """That of the backward of a single tangent, which is compiled with its forward, or of one that
    is compiled when a set of tangents is expected or occurs, under the state that torch then has.
    """
    early = name == "backward" and not context.options.autograd.compile_backward_lazily
    return key_of(key, "backward", name, *(() if early else state_of_backwards()))


def content() -> Any:
    """`graph_content`, imported where a graph is captured."""
    return import_apart("flambeau.graph_content")
