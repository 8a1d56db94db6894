"""`runtime_wrappers.Training` as plain data of JSON, and back: what surrounds a forward and its
backward in a call, without the graphs and without the second derivatives.

`call_json` does the same for `Call`, which says where symbols are read.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from flambeau_autograd.call_json import decode_value, encode_value
from flambeau_autograd.double_backward import Dependence
from flambeau_autograd.graph_call import sizes_reader
from flambeau_autograd.kept_inputs import KeptInputs
from flambeau_autograd.runtime_wrappers import Training
from flambeau_autograd.saved_versions import Watched
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from flambeau_autograd.graph_call import Call
    from flambeau_autograd.runtime_wrappers import Gradients


def encode_training(training: Training) -> dict[str, Any]:
    """The data; `call_json.NotPlain` if it cannot be written."""
    kept = training.kept
    return {
        "saved": [list(source) for source in training.saved],
        "tangent_specs": [_encode_spec(spec) for spec in training.tangent_specs],
        "symbolic": training.symbolic,
        "extras": training.extras,
        "views": training.views,
        "arguments": training.arguments,
        "differentiable": training.differentiable,
        "unconnected": training.unconnected,
        "forgotten": training.forgotten,
        "hooked": training.hooked,
        "non_differentiable": training.non_differentiable,
        "tangents": training.tangents,
        "results": training.results,
        "connected": [sorted(results) for results in training.connected],
        "reaching": [sorted(results) for results in training.reaching],
        "sharing": [[key, sorted(results)] for key, results in training.sharing.items()],
        "dependences": [list(map(list, astuple(each))) for each in training.dependences],
        "handles": [list(handle) for handle in training.handles],
        "watched": [
            [each.side, each.position, sorted(each.results), each.pending, each.shares, each.saved]
            for each in training.watched
        ],
        "kept": [
            kept.needed, sorted(kept.tensors), kept.checked, kept.copied, kept.draws, kept.refused,
        ],
        "parameters": sorted(training.parameters),
        "name": training.name,
        "where": training.where,
    }  # fmt: skip


def decode_training(data: dict[str, Any], call: Call, gradients: Gradients) -> Training:
    """What `encode_training` wrote, with the second derivatives that `gradients` computes."""
    env = SizeEnv()
    symbols = {name: env.symbol(2, name, lower=None, name=name) for name in call.reads or ()}
    needed, tensors, checked, copied, draws, refused = data["kept"]
    return Training(
        saved=[(kind, at) for kind, at in data["saved"]],
        tangent_specs=[
            _decode_spec([decode_value(part, symbols) for part in spec])
            for spec in data["tangent_specs"]
        ],
        symbolic=data["symbolic"],
        extras=data["extras"],
        views=data["views"],
        arguments=data["arguments"],
        differentiable=data["differentiable"],
        unconnected=data["unconnected"],
        forgotten=data["forgotten"],
        hooked=data["hooked"],
        non_differentiable=data["non_differentiable"],
        tangents=data["tangents"],
        results=data["results"],
        connected=list(map(frozenset, data["connected"])),
        reaching=list(map(frozenset, data["reaching"])),
        sharing={key: frozenset(results) for key, results in data["sharing"]},
        dependences=[Dependence(*map(tuple, each)) for each in data["dependences"]],
        handles=[(number, at) for number, at in data["handles"]],
        watched=[
            Watched(side, position, frozenset(results), pending, shares, saved)
            for side, position, results, pending, shares, saved in data["watched"]
        ],
        kept=KeptInputs(
            needed, frozenset(tensors), checked, copied, draws, sizes_reader(call), refused
        ),
        gradients=gradients,
        parameters=frozenset(data["parameters"]),
        name=data["name"],
        where=data["where"],
    )


def _encode_spec(spec: Spec) -> list[Any]:
    parts = (spec.shape, spec.stride, spec.dtype, str(spec.device), spec.offset)
    return [encode_value(part) for part in parts]


def _decode_spec(parts: list[Any]) -> Spec:
    shape, stride, dtype, device, offset = parts
    return Spec.of(shape, stride=stride, dtype=dtype, device=device, offset=offset)
