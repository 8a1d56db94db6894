"""The tracer that torch-level calls run under while they are recorded: shapes only, and what each call does besides."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims import eager_checks
from flambeau_prims.operator_facts import is_check
from flambeau_prims.raising import can_raise
from flambeau_prims.tracer import MutatingCall, Tracer

if TYPE_CHECKING:
    from flambeau_prims.fake import FakeTensor
    from flambeau_prims.sizes import SizeEnv


class SpecTracer(Tracer):
    """Answers ATen calls by shape rules, records none, and notes which tensors a torch-level call writes and whether it is random."""

    def __init__(self, env: SizeEnv | None, device: torch.device | str, *, unbacked: bool) -> None:
        super().__init__(env=env, record=False, device=device, unbacked=unbacked)
        self.written: list[torch.Tensor] = []
        self.random = False
        self.checks = False
        self.can_raise = False
        self.taken: list[FakeTensor] = []
        """Tensors whose number the call asks for."""

    def start_call(self) -> None:
        """Forget what the torch-level call before has done."""
        self.written, self.taken = [], []
        self.random = self.checks = self.can_raise = False

    def item(self, tensor: FakeTensor) -> Any:
        """As `Tracer.item`."""
        self.taken.append(tensor)
        return super().item(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _may_draw(func) and not _drops_nothing(func, args, kwargs):
            self.random = True
        if is_check(func):
            self.checks = True
        if not self.can_raise and can_raise(func, args):
            self.can_raise = True
        if func in _UPDATES_STATISTICS and args[5]:
            self.written.extend(statistic for statistic in args[3:5] if statistic is not None)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _infer(self, key: Any, func: Any, rule_args: Any, rule_kwargs: Any) -> Any:
        try:
            result = super()._infer(key, func, rule_args, rule_kwargs)
        except NotImplementedError as error:
            refused = eager_checks.refusal(func, rule_args, rule_kwargs, error)
        else:
            eager_checks.check(func, rule_args, rule_kwargs)
            return result
        raise refused

    def _mutate(self, call: MutatingCall) -> Any:
        facts = call.facts
        self.written.extend(facts.written(call.args, call.kwargs))
        result = super()._mutate(call)
        if not facts.out:
            if facts.random:
                eager_checks.check_fill(call.func, call.rule_args, call.rule_kwargs)
            else:
                checked = facts.functional or call.func
                eager_checks.check(checked, call.rule_args, call.rule_kwargs)
        return result


_UPDATES_STATISTICS = frozenset(
    {
        torch.ops.aten.native_batch_norm.default,
        torch.ops.aten.cudnn_batch_norm.default,
        torch.ops.aten.miopen_batch_norm.default,
    }
)
"""(input, weight, bias, running_mean, running_var, training, ...): in training both statistics are written, as no schema says."""


@functools.cache
def _may_draw(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call of an attention operator draws no random numbers, since its dropout has probability 0."""
    at = _place_of_dropout(func)
    if at is None:
        return False
    given = args[at] if at < len(args) else (kwargs or {}).get("dropout_p", 0.0)
    return type(given) is float and given == 0.0


@functools.cache
def _place_of_dropout(func: Any) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None
