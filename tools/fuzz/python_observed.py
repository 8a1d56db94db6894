"""Statements of random programs that look at what a compiler changes first: tracebacks, chains of
errors, addresses, groups, refused dtypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.fuzz.python_idioms import Expressions

OBSERVERS = '''
def lines_of(error):
    """The program's functions and lines that an error has passed."""
    entries = traceback.extract_tb(error.__traceback__)
    return [(e.name, e.lineno) for e in entries if e.filename.startswith("<program")]

def chain_of(error):
    """The types, texts and lines of an error and its contexts."""
    links = []
    while error is not None and len(links) < 9:
        suppressed = error.__suppress_context__
        links.append((type(error).__name__, str(error)[:60], lines_of(error), suppressed))
        error = error.__context__
    return links

def fails(q):
    if isinstance(q, torch.Tensor):
        raise KeyError("tensor")
    return [].index(q)
'''

_BREAK = "print(end='')"
_HANDLED = ("Exception", "Exception", "KeyError", "(ValueError, ArithmeticError)")
_GROUPED = ("[1, 1, 2, 3, 3]", "[n, n, 1]", "range(n)", "iter([2, 2, 4])")


def observed(of: Expressions) -> str:
    """One of these statements."""
    return of.one_of(_traceback, _traceback, _addresses, _groups, _refused, _refused)(of)


def _step(of: Expressions) -> str:
    """What a block does before it goes on: a graph break, or no more than a tensor operation."""
    return of.one_of(_BREAK, _BREAK, "t = t + 1", "k = 1")


def _traceback(of: Expressions) -> str:
    error = of.one_of("fails(n)", "fails(x)", "1 / 0", "table['none']", "missing_name", "items[99]")
    again = of.one_of("raise", "raise ValueError('v')", "raise TypeError('t') from error", "k = 2")
    last = of.one_of("k = 3", "k = 3", "raise IndexError('i')", "fails(y)")
    return f"""
try:
    try:
        {_step(of)}
        {error}
    except {of.one_of(*_HANDLED)} as error:
        {_step(of)}
        {again}
    finally:
        {_step(of)}
        {last}
except Exception as error:
    {_step(of)}
    seen.append(chain_of(error))"""


def _addresses(of: Expressions) -> str:
    subject = of.one_of("thing", "other", "Bag(1)", "object()", "[n]", "x", "t", "lambda: 1")
    read = of.one_of("id(o)", "object.__repr__(o)", "hash(Point)", "object.__hash__(o)")
    return f"""
o = {subject}
address = {read}
{_step(of)}
seen.append((address == {read}, {{address: 1}}.get({read})))
{_step(of)}
seen.append(address == {read})"""


def _groups(of: Expressions) -> str:
    key = of.one_of(
        "None", "lambda q: q % 2", "lambda q: q > n", "lambda q: (print(end=''), q // 2)[1]"
    )
    use = of.one_of("list(group)", "sum(group)", "next(group)", "[q * t for q in group]")
    return f"""
groups = itertools.groupby({of.one_of(*_GROUPED)}, {key})
for m, group in groups:
    {_step(of)}
    seen.append((m, {use}))"""


def _refused(of: Expressions) -> str:
    subject = of.one_of(
        "i", "b", "x", "x.to(torch.float16)", "x.to(torch.complex64)", "i.to(torch.uint8)"
    )
    call = of.one_of(
        "o.sin()",
        "o.mean()",
        "-o",
        "~o",
        "o & 1",
        "o << 1",
        "o @ o",
        "o - o",
        "o % 2",
        "o.relu()",
        "o.std()",
        "o > 1j",
        "o.sort()[0]",
        "o.cumsum(0)",
        "torch.fmod(o, 2)",
        "torch.bitwise_or(o, o)",
        "torch.floor(o)",
        "torch.sign(o)",
        "torch.clamp(o, 0, 1)",
        "torch.nn.functional.gelu(o)",
        "o.softmax(0)",
        "torch.logical_not(o)",
        "o.add_(1.5)",
        "o.clone().div_(2)",
    )
    return f"""
o = {subject}
try:
    seen.append({call})
except Exception as error:
    seen.append((type(error).__name__, str(error)))"""
