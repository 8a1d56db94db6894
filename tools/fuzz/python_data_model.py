"""Statements of random programs about Python's data model: subclasses of containers with slots,
special methods that return NotImplemented, reflected operators, live iterators and patterns, with
graph breaks among them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tools.fuzz import data_model_classes

if TYPE_CHECKING:
    from tools.fuzz.python_idioms import Expressions

DATA_MODEL = inspect.getsource(data_model_classes)
"""Stands above the programs."""

_SLOTTED = ("SlotList([1, 2])", "SlotDict(k=1)", "SlotSet([3])")
_ADDERS = ("Add()", "AddInherits()", "AddOverrides()", "RightOnly(2)", "1.5", "SilentInt(2)")
_SILENT = ("Silent(k=1)", "{'k': 1}", "collections.Counter(k=1)", "collections.OrderedDict(k=1)")
_SILENT_LISTS = ("SilentList([1])", "[1]", "SilentList([2, 0])")
_SILENT_INTS = ("SilentInt(1)", "1", "SilentInt(2)", "True", "1.0", "n")
_MATCHED = (
    "Named(n, x)",
    "{'left': n, 'right': 2}",
    "[n, 2, 3]",
    "SlotList([1, n])",
    "SilentInt(1)",
    "items",
)
_NAMED_PATTERNS = ("0, 1", "left, right", "left, right=right", "1, 2, 3", "left, left=right")
_BAD_CALLS = (
    "[1].count()",
    "len()",
    "max()",
    "[].pop(0)",
    "next([])",
    "sum(3)",
    "iter(1, 2)",
    "[1].index(9)",
    "(1,).index(9)",
    "sorted()",
    "reversed(1)",
)
_FIXED = (
    "net",
    "thing",
    "SlotList()",
    "functools.partial(len)",
    "Fixed()",
    "slice(1)",
    "net.forward",
)
_ATTRIBUTES = ("'weight'", "'steps'", "'func'", "'size'", "'start'", "'b'")
CONSUMERS = (
    "set",
    "frozenset",
    "collections.Counter",
    "dict.fromkeys",
    "list",
    "tuple",
    "sorted",
    "sum",
    "max",
    "any",
    "collections.deque",
    "{1, 9}.union",
    "{1, 2, 3}.intersection",
    "{1, 2}.difference",
    "{1, 4}.symmetric_difference",
    "{1, 2, 3}.issuperset",
    "{7}.isdisjoint",
    "collections.OrderedDict.fromkeys",
    "bytes",
    "next",
    "enumerate",
    "(lambda q: [*q])",
    "(lambda q: 2 in q)",
    "(lambda q: dict(zip(q, q)))",
    "(lambda q: list(map(abs, q)))",
    "(lambda q: set().union([5], q))",
    "(lambda q: list(itertools.chain(q, q)))",
)
"""Functions that consume an iterator."""


def data_model(of: Expressions) -> str:
    """One statement, or a few."""
    stop = of.one_of("stop()", "stop()", "pass")
    return of.one_of(
        lambda: (
            f"""
held = {of.one_of(*_SLOTTED)}
held.a = {of.any}
{stop}
seen.append((held.a, hasattr(held, "b"), len(held), type(held).__name__))
held.a = {of.any}
seen.append((held, held.a))"""
        ),
        lambda: (
            f"seen.append({of.one_of(*_SILENT)} {of.one_of('==', '!=', '|')} {of.one_of(*_SILENT)})"
        ),
        lambda: (
            f"seen.append({of.one_of(*_SILENT_LISTS)} "
            f"{of.one_of('==', '!=', '<', '>', '+')} {of.one_of(*_SILENT_LISTS)})"
        ),
        lambda: (
            f"seen.append({of.one_of(*_SILENT_INTS)} "
            f"{of.one_of('==', '!=', '<', '>', '+', '*', '<=')} {of.one_of(*_SILENT_INTS)})"
        ),
        lambda: (
            f"seen.append({of.one_of(*_ADDERS)} {of.one_of('+', '+', '<', '-')} "
            f"{of.one_of(*_ADDERS)})"
        ),
        lambda: (
            f"""
q = live([1, 2, 3])
{stop}
m = {of.one_of(*CONSUMERS)}(q)
{stop}
seen.append((str(m)[:12] if not hasattr(m, "__next__") else 0, list(q)))"""
        ),
        lambda: (
            f"seen.append({of.one_of('[3, 1, 0, 1, 3]', '(3, 1, 0, 1, 3)', '[n, 1, n]')}.index("
            f"{of.one_of('1', '3', 'n')}, {of.one_of('0', '1', '2', '-2', '-9')}"
            f"{of.one_of('', ', 3', ', -1', ', 99')}))"
        ),
        lambda: (
            f"""
match {of.one_of(*_MATCHED)}:
    case Named({of.one_of(*_NAMED_PATTERNS)}):
        seen.append("named")
    case {{"left": {of.one_of("0", "left")}, **rest}}:
        seen.append(rest)
    case [{of.one_of("1", "first", "2")}, *rest]:
        seen.append(len(rest))
    case int({of.one_of("1", "real=1", "1, 2")}):
        seen.append("int")"""
        ),
        lambda: (
            f"""
try:
    seen.append({of.one_of(*_BAD_CALLS)})
except (TypeError, ValueError, IndexError) as error:
    seen.append(str(error))"""
        ),
        lambda: (
            f"""
try:
    setattr({of.one_of(*_FIXED)}, {of.one_of(*_ATTRIBUTES)}, {of.one_of("3", "None", "map", "'a'")})
except (TypeError, AttributeError) as error:
    seen.append(str(error))"""
        ),
        lambda: (
            f"k = {of.one_of('min', 'max')}({of.one_of('max', 'min')}(x.sum(), 0), "
            f"{of.one_of('1', '0.5', 'n', 'y.sum()')})"
        ),
    )()
