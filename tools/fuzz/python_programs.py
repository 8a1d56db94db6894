"""Random Python programs as hypothesis strategies: control flow, containers, mutation, classes,
exceptions, and tensors among them.

A program is the text of `program(x, y, n, flag, items, table, thing, z, v, w, i, b, net)`: tensors
(z a view of x, v not contiguous, w a leaf that requires gradients, i ints, b bools), numbers,
containers, an object and a module; python_prelude.py is what stands above it. What it does wrong (a
KeyError, an unbound name) is a part of what must be the same compiled. hypothesis shrinks a program
that differs.
"""

from __future__ import annotations

from hypothesis import reject
from hypothesis import strategies as st

from tools.fuzz.python_data_model import DATA_MODEL
from tools.fuzz.python_idioms import Expressions, idiom
from tools.fuzz.python_observed import OBSERVERS
from tools.fuzz.python_prelude import PRELUDE

_TENSORS = ("x", "y", "t", "u", "x", "y", "t", "u", "z", "v", "w", "i")
_INPUTS = ("x", "y", "z", "v", "x", "t")
_NUMBERS = ("n", "k", "m")
_LISTS = ("items", "made")
_DICTS = ("table", "named")
_THINGS = ("thing", "other")


def _pick(draw: st.DrawFn, options: tuple[str, ...]) -> str:
    return draw(st.sampled_from(options))


def _tensor(draw: st.DrawFn, depth: int) -> str:
    if depth <= 0 or draw(st.integers(0, 3)) == 0:
        return _pick(draw, _TENSORS)
    a = _tensor(draw, depth - 1)
    form = draw(st.integers(0, 15))
    match form:
        case 0 | 1 | 2:
            return f"({a} {_pick(draw, ('+', '-', '*'))} {_tensor(draw, depth - 1)})"
        case 3 | 4:
            return f"({a} {_pick(draw, ('+', '*', '-'))} {_number(draw, depth - 1)})"
        case 5:
            return f"torch.{_pick(draw, ('sin', 'relu', 'neg', 'tanh'))}({a})"
        case 6:
            return f"{a}[{_pick(draw, ('0', '1:', '::2', '-1', ':, None', '..., :1'))}]"
        case 7:
            return f"{a}." + _pick(
                draw, ("sum()", "flatten()", "clone()", "detach()", "view(-1)", "mean()")
            )
        case 8:
            return f"torch.where({a} > 0, {a}, {_tensor(draw, depth - 1)})"
        case 9:
            return f"{_pick(draw, _THINGS)}({a})"
        case 10:
            return f"helper({a}, {_number(draw, depth - 1)}, key={_tensor(draw, depth - 1)})"
        case 11:
            return f"({a} if {_condition(draw, depth - 1)} else {_tensor(draw, depth - 1)})"
        case 12:
            return (
                f"sum([{a} * q for q in range({draw(st.integers(0, 3))})], "
                f"{_tensor(draw, depth - 1)})"
            )
        case 13:
            return f"torch.stack([{a}, {a}]).sum(0)"
        case 14:
            return f"{_pick(draw, _THINGS)}.add({a}, 1, sign={draw(st.integers(-1, 2))})"
        case _:
            return f"counted({a})"


def _number(draw: st.DrawFn, depth: int) -> str:
    if depth <= 0 or draw(st.integers(0, 2)) == 0:
        return _pick(draw, (*_NUMBERS, "2", "3", "-1", "0"))
    form = draw(st.integers(0, 11))
    match form:
        case 0 | 1:
            return (
                f"({_number(draw, depth - 1)} {_pick(draw, ('+', '-', '*'))} "
                f"{_number(draw, depth - 1)})"
            )
        case 2:
            return (
                f"({_number(draw, depth - 1)} {_pick(draw, ('//', '%'))} "
                f"{_pick(draw, ('2', '3', 'n', '0'))})"
            )
        case 3:
            return f"len({_pick(draw, (*_LISTS, *_DICTS, *_THINGS))})"
        case 4:
            return (
                f"{_pick(draw, _TENSORS)}."
                f"{_pick(draw, ('shape[0]', 'ndim', 'numel()', 'size(-1)'))}"
            )
        case 5:
            return f"{_pick(draw, _DICTS)}.get({_key(draw)}, {_number(draw, depth - 1)})"
        case 6:
            return f"int({_pick(draw, _TENSORS)}.sum().item())"
        case 7:
            return f"max({_number(draw, depth - 1)}, {_number(draw, depth - 1)})"
        case 8:
            return f"{_pick(draw, _THINGS)}.{_pick(draw, ('value', 'doubled', 'scale'))}"
        case 9:
            return f"(k := {_number(draw, depth - 1)})"
        case 10:
            return f"abs({_number(draw, depth - 1)})"
        case _:
            return f"sum(q for q in {_pick(draw, _LISTS)} if isinstance(q, int))"


def _key(draw: st.DrawFn) -> str:
    return _pick(draw, ("'a'", "'b'", "1", "n", "(1, 2)"))


def _condition(draw: st.DrawFn, depth: int) -> str:
    form = draw(st.integers(0, 9))
    match form:
        case 0 | 1:
            return (
                f"{_number(draw, depth)} {_pick(draw, ('<', '>', '==', '!=', '<='))} "
                f"{_number(draw, depth)}"
            )
        case 2:
            return "flag"
        case 3:
            return f"{_key(draw)} in {_pick(draw, _DICTS)}"
        case 4:
            return f"{_pick(draw, _TENSORS)}.sum() > {_number(draw, 0)}"
        case 5:
            return f"not {_pick(draw, _LISTS)}"
        case 6:
            return f"{_pick(draw, _THINGS)} == {_pick(draw, _THINGS)}"
        case 7:
            return f"{_pick(draw, _LISTS)} is {_pick(draw, _LISTS)}"
        case 8:
            return (
                f"isinstance({_pick(draw, _THINGS)}, Child) and {_condition(draw, depth - 1)}"
                if depth > 0
                else "flag"
            )
        case _:
            return (
                f"hasattr({_pick(draw, _THINGS)}, "
                f"{_pick(draw, ('chr(97)', repr('value'), repr('dynamic'), repr('new')))})"
            )


def _any(draw: st.DrawFn, depth: int = 1) -> str:
    kind = draw(st.integers(0, 6))
    if kind <= 2:
        return _tensor(draw, depth)
    if kind <= 4:
        return _number(draw, depth)
    return _pick(draw, (*_LISTS, *_DICTS, *_THINGS, "None", "'text'", "f'{n}-{k}'"))


def _simple(draw: st.DrawFn) -> list[str]:
    """One statement without a block."""
    form = draw(st.integers(0, 27))
    a_list, a_dict, a_thing = _pick(draw, _LISTS), _pick(draw, _DICTS), _pick(draw, _THINGS)
    match form:
        case 0 | 1 | 2 | 3:
            return [f"{_pick(draw, _TENSORS)} = {_tensor(draw, 2)}"]
        case 4 | 5:
            return [f"{_pick(draw, _NUMBERS)} = {_number(draw, 2)}"]
        case 6:
            return [f"{_pick(draw, _TENSORS)} {_pick(draw, ('+=', '*=', '-='))} {_number(draw, 1)}"]
        case 7:
            return [f"{_pick(draw, _NUMBERS)} {_pick(draw, ('+=', '-=', '*='))} {_number(draw, 1)}"]
        case 8:
            return [f"{a_list}.append({_any(draw)})"]
        case 9:
            return [
                f"{a_list}."
                + _pick(
                    draw,
                    (
                        "reverse()",
                        "pop()",
                        "pop(0)",
                        "clear()",
                        "extend([1, x])",
                        "insert(0, y)",
                        "copy()",
                    ),
                )
            ]
        case 10:
            return [
                (
                    f"{a_list}[{_pick(draw, ('0', '-1', '1', '0:1'))}] = "
                    f"{_pick(draw, ('[x]', '[n]', '[]'))}"
                )
            ]
        case 11:
            return [f"{a_dict}[{_key(draw)}] = {_any(draw)}"]
        case 12:
            return [
                f"{a_dict}."
                + _pick(
                    draw,
                    (
                        "pop(1, None)",
                        "setdefault(2, []).append(n)",
                        "update(z=x)",
                        "popitem()",
                        "clear()",
                    ),
                )
            ]
        case 13:
            return [
                "del "
                + _pick(draw, (a_dict + "[" + _key(draw) + "]", a_list + "[0]", a_thing + ".value"))
            ]
        case 14:
            return [f"{a_thing}.{_pick(draw, ('value', 'doubled', 'new', 'scale'))} = {_any(draw)}"]
        case 15:
            return [f"{a_thing} = {_pick(draw, ('Thing', 'Child'))}({_any(draw)})"]
        case 16:
            return [f"{_pick(draw, _LISTS)} = {_pick(draw, _LISTS)}"]
        case 17:
            return [f"made = [{_any(draw)}, {_any(draw)}]"]
        case 18:
            return [f"named = {{'a': {_any(draw)}, 'b': {_any(draw)}}}"]
        case 19:
            return [f"{_pick(draw, _TENSORS)}.{_pick(draw, ('add_(1)', 'mul_(2)', 'zero_()'))}"]
        case 20:
            return [f"{_pick(draw, _TENSORS)}[0] = {_number(draw, 0)}"]
        case 21:
            return [f"t, *made = {_pick(draw, ('(x, y, n)', 'x, y', '[x]', 'items'))}"]
        case 22:
            return ["n, k = k, n"]
        case 23:
            return [f"seen.append({_any(draw)})"]
        case 24:
            return [
                (
                    f"made = [q for q in {a_list} if "
                    f"{_pick(draw, ('q is not None', 'isinstance(q, int)', 'True'))}]"
                )
            ]
        case 25:
            return [f"k = sorted([{_number(draw, 1)}, {_number(draw, 1)}, 1], key=lambda q: -q)[0]"]
        case 26:
            return [f"seen.extend(produced({_pick(draw, _TENSORS)}, {draw(st.integers(0, 3))}))"]
        case _:
            return [
                f"seen.append(({a_list} is items, {a_dict} is table, {_pick(draw, _TENSORS)} is x))"
            ]


_KINDS = {
    "tensor": _tensor,
    "number": _number,
    "condition": _condition,
    "any": lambda draw, depth: _any(draw, depth),
    "input": lambda draw, _: _pick(draw, _INPUTS),
    "name": lambda draw, _: _pick(draw, _TENSORS),
    "list": lambda draw, _: _pick(draw, _LISTS),
    "dict": lambda draw, _: _pick(draw, _DICTS),
    "thing": lambda draw, _: _pick(draw, _THINGS),
}


def _block(draw: st.DrawFn, depth: int, *, in_loop: bool) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += _statement(draw, depth, in_loop=in_loop)
    return [f"    {line}" for line in lines]


def _statement(draw: st.DrawFn, depth: int, *, in_loop: bool) -> list[str]:
    form = draw(st.integers(0, 32)) if depth > 0 else 0
    if form <= 11:
        return _simple(draw)
    if form > 24:
        return idiom(Expressions(draw, _KINDS))
    body = _block(draw, depth - 1, in_loop=in_loop or form in (14, 15, 16, 17))
    match form:
        case 12 | 13:
            otherwise = (
                ["else:", *_block(draw, depth - 1, in_loop=in_loop)] if draw(st.booleans()) else []
            )
            return [f"if {_condition(draw, 1)}:", *body, *otherwise]
        case 14 | 15:
            source = _pick(
                draw,
                (
                    "range(3)",
                    "[1, 2]",
                    "list(items)",
                    "range(n)",
                    "enumerate([x, y])",
                    "zip([1, 2], [x, y])",
                    "items[:2]",
                ),
            )
            target = "m, t" if source.startswith(("enumerate", "zip")) else "m"
            end = (
                ["else:", *_block(draw, 0, in_loop=in_loop)] if draw(st.integers(0, 3)) == 0 else []
            )
            return [f"for {target} in {source}:", *body, *end]
        case 16:
            # A counter that no statement assigns, so that the loop ends.
            counter = f"turn{depth}"
            return [
                f"{counter} = 0",
                f"while {counter} < {draw(st.integers(1, 3))}:",
                f"    {counter} += 1",
                *body,
            ]
        case 17:
            leave = _pick(draw, ("break", "continue"))
            return [
                "for m in range(3):",
                f"    if {_condition(draw, 1)}:",
                f"        {leave}",
                *body,
            ]
        case 18 | 19:
            error = _pick(draw, ("KeyError", "ValueError", "Exception", "(TypeError, IndexError)"))
            handler = ["    seen.append(type(error).__name__)", *_block(draw, 0, in_loop=in_loop)]
            end = ["finally:", *_block(draw, 0, in_loop=in_loop)] if draw(st.booleans()) else []
            return ["try:", *body, f"except {error} as error:", *handler, *end]
        case 20:
            return [f"with tracked(seen, {draw(st.integers(0, 9))}) as k:", *body]
        case 21:
            return ["with torch.no_grad():", *body]
        case 22:
            raised = _pick(draw, ("ValueError(n)", "KeyError('k')", "RuntimeError"))
            return [f"if {_condition(draw, 1)}:", f"    raise {raised}"]
        case 23:
            return [
                "def inner(q, w=1):",
                "    nonlocal k",
                "    k += 1",
                "    seen.append(w)",
                f"    return q + {_pick(draw, ('k', 'x', 'n'))}",
                f"t = inner({_tensor(draw, 1)}, w={_number(draw, 0)})",
            ]
        case _:
            if in_loop:
                return [f"if {_condition(draw, 1)}:", f"    {_pick(draw, ('break', 'continue'))}"]
            return [f"if {_condition(draw, 1)}:", f"    return {_any(draw, 2)}"]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The body of one program: a whole module that defines `program`."""
    lines: list[str] = [
        "global COUNTER",
        "t, u, k, m, seen, made, named, other = x + 1, y, 1, 0, [], [y], {'a': n}, Thing(n)",
    ]
    for _ in range(draw(st.integers(2, 7))):
        lines += _statement(draw, 2, in_loop=False)
    lines.append(f"return {_any(draw, 2)}, t, u, k, seen, made, named, other")
    body = "\n".join(f"    {line}" for line in lines)
    text = (
        f"{PRELUDE}{DATA_MODEL}{OBSERVERS}\n"
        "\n"
        "def program(x, y, n, flag, items, table, thing, z, v, w, i, b, net):\n"
        f"{body}\n"
    )
    try:
        compile(text, "<program>", "exec")
    except SyntaxError:  # such as a walrus where this version of the grammar has none
        reject()
    return text
