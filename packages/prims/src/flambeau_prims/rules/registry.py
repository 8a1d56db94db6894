"""The rule registry, alias facts of operators, and the (op, specs) -> specs cache.

    @rule(aten.add.Tensor, aten.sub.Tensor)
    def add(self: Spec, other: Spec | Number, alpha: Number) -> Spec: ...

A rule gets those ATen arguments that it names, by the schema's names; those without a default in
the rule have the schema's. A rule with `*args`, or with a required parameter that the schema does
not name, gets all arguments as they are passed. Tensors are replaced by their Specs and symbolic
ints by Exprs; lists arrive as tuples. A rule returns what the operator returns, with a Spec (or
None for an undefined tensor) for each tensor; for an operator that returns a list of tensors, a
list or tuple of Specs. Rules are pure, and ask relations between sizes only through
`flambeau_prims.sizes`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from flambeau_prims.device_check import check_devices
from flambeau_prims.meta_fallback import infer_on_meta
from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules import load_all
from flambeau_prims.size_floats import FloatExpr
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

aten = torch.ops.aten

RuleFunction = TypeVar("RuleFunction", bound="Callable[..., Any]")

RuleFinder: TypeAlias = "Callable[[OpOverload], Callable[..., Any] | None]"

_RULES: dict[OpOverload, Callable[..., Any]] = {}
_CALLS: dict[OpOverload, Callable[..., Any]] = {}
"""The rules that were asked for, as `_taking_named_arguments` gives them."""
_FINDERS: list[RuleFinder] = []
_CACHE: dict[tuple[Any, ...], Any] = {}


def rule(*ops: OpOverload) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of these overloads; ValueError for a second."""

    def register(function: RuleFunction) -> RuleFunction:
        for op in ops:
            if op in _RULES:
                raise ValueError(f"{op} has a rule already: {_RULES[op]}")
            _RULES[op] = function
        return function

    return register


def rule_for_others(find: RuleFinder) -> RuleFinder:
    """Register a function that finds a rule, or None, for an overload without one."""
    _FINDERS.append(find)
    return find


def rule_for(op: OpOverload) -> Callable[..., Any] | None:
    """The shape rule of an overload, called with the arguments of the operator, or None."""
    load_all()
    if op in _RULES:
        return _CALLS.get(op) or _CALLS.setdefault(op, _taking_named_arguments(op, _RULES[op]))
    return next((result for find in _FINDERS if (result := find(op)) is not None), None)


def _taking_named_arguments(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule as a function of all arguments of the operator."""
    arguments = {argument.name: argument for argument in op._schema.arguments}
    parameters = inspect.signature(function).parameters
    defaults: dict[str, Any] = {}
    takes_others = False
    for name, parameter in parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            takes_others = True
        elif parameter.default is not parameter.empty:
            defaults[name] = parameter.default
        elif name not in arguments:
            return function
        elif arguments[name].has_default_value():
            default = arguments[name].default_value
            defaults[name] = tuple(default) if isinstance(default, list) else default

    def call(*args: Any, **kwargs: Any) -> Any:
        given = defaults | dict(zip(arguments, args, strict=False)) | kwargs
        return function(**{
            name: value for name, value in given.items() if takes_others or name in parameters
        })  # fmt: skip

    return call


def registered() -> tuple[OpOverload, ...]:
    """Every overload that has a rule."""
    load_all()
    return tuple(_RULES)


def infer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """The Specs of `op`'s results on these arguments (tensors given as Specs), by its rule, cached.

    An operator without a rule is run on meta tensors if every size is an int; raises `NoRule`
    otherwise.
    """
    return infer_keyed((op, *cache_key(args), *cache_key(kwargs or ())), op, args, kwargs or {})


def infer_keyed(
    key: tuple[Any, ...], op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """As `infer`, with a cache key that tells 1, 1.0 and True apart."""
    default = torch.get_default_dtype()
    if default is not torch.float32:  # the dtype of float results of integers
        key = (default, *key)
    cached = _CACHE.get(key)
    if cached is None:
        cache = cache_for(key)
        cached = cache.get(key)
        if cached is None:
            cached = cache[key] = infer_uncached(op, args, kwargs)
    return cached


def infer_uncached(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `infer`, without looking at or filling the cache."""
    check_devices(op, args, kwargs)
    result = _CALLS.get(op) or rule_for(op)
    return infer_on_meta(op, args, kwargs) if result is None else result(*args, **kwargs)


def cache_for(key: tuple[Any, ...]) -> dict[tuple[Any, ...], Any]:
    """The cache for a key: of the SizeEnv whose Exprs it holds, or the process-wide one."""
    for item in key:
        if isinstance(item, (Expr, FloatExpr)):
            return item.env.rule_cache
        if isinstance(item, Spec) and item.env is not None:
            return item.env.rule_cache
    return _CACHE


def cache_key(arg: Any) -> Iterator[Any]:
    """A flat key for arguments: 1, 1.0 and True are distinguished, lists and tuples are not."""
    if isinstance(arg, dict):
        for name, item in arg.items():
            yield name
            yield from cache_key(item)
    elif isinstance(arg, (tuple, list)):
        yield len(arg)
        yield tuple
        for item in arg:
            yield from cache_key(item)
    elif isinstance(arg, (bool, float, complex)):
        yield type(arg)
        yield arg
    else:
        yield arg


# What schemas say about aliasing


@dataclass(frozen=True)
class Aliasing:
    """How an operator's results and its arguments share memory, from its schema.

    `returns[i]` is the name of the argument that result i is (in place, out=) or views, else None.
    `mutated` names the arguments that are written to.  `view` tells views from in-place results.
    """

    returns: tuple[str | None, ...]
    mutated: tuple[str, ...]
    view: bool


_SHARES_WITHOUT_SAYING = {
    aten._unsafe_view.default: "self",
    aten.unsafe_split.Tensor: "self",
    aten.unsafe_split_with_sizes.default: "self",
}
"""Views whose schemas wrongly promise own memory; `tests/cpu/test_hidden_aliases.py` finds them."""


@per_operator
def aliasing(op: OpOverload) -> Aliasing:
    """The alias facts of an overload."""
    schema = op._schema
    owner: dict[str, str] = {}
    mutated = []
    for argument in schema.arguments:
        info = argument.alias_info
        if info is not None:
            for alias_set in info.before_set:
                owner[alias_set] = argument.name
            if info.is_write:
                mutated.append(argument.name)
    returns: list[str | None] = []
    view = False
    for result in schema.returns:
        info = result.alias_info
        source = None
        if info is not None:
            source = next((owner[s] for s in info.before_set if s in owner), None)
            if (
                not info.before_set
            ):  # Tensor(a)[], as split and unbind return: the alias set is lost
                source = next(iter(owner.values()), None)
            view = view or (source is not None and not info.is_write)
        returns.append(source)
    if op in _SHARES_WITHOUT_SAYING:
        returns, view = [_SHARES_WITHOUT_SAYING[op]], True
    return Aliasing(tuple(returns), tuple(mutated), view)


def is_view(op: OpOverload) -> bool:
    """Whether the operator's results share memory with an argument without writing to it."""
    return aliasing(op).view


def is_mutating(op: OpOverload) -> bool:
    """Whether the operator writes to an argument, as its schema says."""
    return bool(aliasing(op).mutated)
