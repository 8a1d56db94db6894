"""Statements of random programs beyond the simplest: what people write with classes, containers,
closures, generators, views and modules.

`idiom(draw, expressions)` draws one, as lines. The names it may use are the programs'; what it
needs of expressions it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tools.fuzz.python_data_model import data_model
from tools.fuzz.python_observed import observed


class Expressions:
    """Expressions of the kinds that statements need, drawn anew at each `{of.tensor}`."""

    def __init__(self, draw: st.DrawFn, kinds: dict[str, Callable[[st.DrawFn, int], str]]) -> None:
        self._draw = draw
        self._kinds = kinds

    def __getattr__(self, kind: str) -> str:
        return self._kinds[kind](self._draw, 1)

    def one_of(self, *options: Any) -> Any:
        """One of the options."""
        return self._draw(st.sampled_from(options))


Statement = Callable[[Expressions], str]


def idiom(of: Expressions) -> list[str]:
    """One idiom, of one of the groups."""
    group = of.one_of(
        _CLASSES,
        _CONTAINERS,
        _FUNCTIONS,
        _CONTROL,
        _CONTROL,
        _TENSORS,
        _TENSORS,
        _TENSORS,
        _raising,
        _texts,
        data_model,
        data_model,
        observed,
        observed,
    )
    statement = of.one_of(*group) if isinstance(group, tuple) else group
    return statement(of).strip("\n").split("\n")


_CLASSES: tuple[Statement, ...] = (
    lambda of: (
        f"""
class Local({of.one_of("Thing", "Child", "Both")}):
    kind = {of.number}
    def __init__(self, value):
        super().__init__(value)
        self.extra = {of.any}
    def add(self, other, *more, sign=1):
        return super().add(other, *more, sign=sign) + self.kind
other = Local({of.number})
seen.append(other.add({of.number}))"""
    ),
    lambda of: (
        f"""
class Counted:
    made = 0
    def __init__(self):
        type(self).made += {of.one_of("1", "n")}
m = [Counted() for _ in range({of.one_of(0, 1, 3)})] and Counted.made"""
    ),
    lambda of: (
        f"""
for o in ({of.thing}, Both({of.number}), {of.thing}):
    seen.append(o.add({of.tensor}, 2))"""
    ),
    lambda of: f"{of.thing}.degrees = {of.any}\nk = {of.thing}.degrees",
    lambda of: (
        f"seen.append(getattr({of.thing}, "
        f"{of.one_of(repr('log'), repr('dynamic_x'), repr('missing'))}, {of.any}))"
    ),
    lambda of: (
        f"setattr({of.thing}, {of.one_of(repr('value'), repr('degrees'), repr('fresh'))}, {of.any})"
    ),
    lambda of: (
        f"other = {of.one_of('Both.made_of', 'Thing.made_of', 'type(thing)', 'thing.made_of')}("
        f"{of.any})"
    ),
    lambda of: f"made = {of.thing}.plain({of.any})",
    lambda of: f"Thing.scale = {of.one_of('n', '2', '3')}",
    lambda of: (
        f"point = Point({of.any}, {of.any})\n"
        f"point.right = {of.any}\n"
        "seen.append(point)\n"
        "seen.append(point == Point(1, 2))"
    ),
    lambda of: (
        f"point = dataclasses.replace(Point({of.number}), {of.one_of('left', 'right')}={of.any}"
        ")\n"
        f"made = [point, dataclasses.asdict(Fixed({of.number}))]"
    ),
    lambda of: (
        f"fixed = Fixed({of.number})\n"
        f"named[{of.one_of('fixed', 'fixed.name')}] = {of.any}\n"
        "seen.append(fixed == Fixed(n))"
    ),
    lambda of: (
        "try:\n    Fixed().size = n\nexcept AttributeError as error:\n    seen.append(str(error))"
    ),
    lambda of: (
        f"pair = Pair({of.any}, {of.tensor})\n"
        f"m, t = {of.one_of('pair', 'pair._replace(first=1)', 'pair[::-1]')}\n"
        "seen.append(pair)"
    ),
    lambda of: (
        f"bag = Bag({of.any}, {of.tensor})\n"
        f"bag += {of.any}\n"
        f"bag[0] = {of.any}\n"
        f"seen.append((len(bag), {of.tensor} in bag, bool(bag)))\n"
        "made = [*bag]"
    ),
    lambda of: f"bag = {of.one_of('Bag(1) + n', 'n + Bag(1)', 'Bag() + Bag(2)')}\nseen.append(bag)",
    lambda of: (
        f"seen.append((type({of.thing}).__name__, isinstance({of.thing}, (Child, "
        f"int)), issubclass(Both, Mixed), callable({of.thing})))"
    ),
    lambda of: f"seen.append(sorted(vars({of.thing})))",
    lambda of: f"other = copy.copy({of.thing})\nother.log = [{of.any}]",
    lambda of: (
        f"made = copy.{of.one_of('copy', 'deepcopy')}("
        f"{of.one_of('items', 'made', 'table', 'thing.log')})"
    ),
)


_CONTAINERS: tuple[Statement, ...] = (
    lambda of: (
        f"{of.list}[{of.one_of('1:2', ':0', '::2', '-1:', ':')}] = "
        f"{of.one_of('[n, x]', '[]', 'made', 'range(2)', 'items[:1]')}"
    ),
    lambda of: f"del {of.list}[{of.one_of('::2', '1:', ':1', '-1')}]",
    lambda of: f"{of.list} += {of.one_of('[n]', '(x,)', 'made', 'range(n)')}",
    lambda of: (
        f"bag = {{1, n, k if isinstance(k, int) else 7}}\n"
        f"bag.{of.one_of('add(5)', 'discard(1)', 'update([8, n])', 'remove(3)')}\n"
        f"seen.append(bag {of.one_of('|', '&', '-', '^')} {{1, 3, 8}})"
    ),
    lambda of: (
        f"queue = collections.deque({of.list}, maxlen={of.one_of(None, 2)})\n"
        f"queue.{of.one_of('appendleft(n)', 'popleft()', 'rotate(1)', 'extend([x, 1])')}\n"
        "seen.append(queue)"
    ),
    lambda of: (
        "groups = collections.defaultdict(list)\n"
        "for m in [1, 2, n]:\n"
        f"    groups[m % 2].append({of.any})\n"
        "seen.append(groups)"
    ),
    lambda of: f"seen.append(collections.Counter([n, 1, 1, {of.number}, 'a']))",
    lambda of: (
        "ordered = collections.OrderedDict(a=1, b=x)\n"
        f"ordered.move_to_end({of.one_of(repr('a'), repr('b'), repr('c'))}, last="
        f"{of.one_of(True, False)})\n"
        "named = ordered"
    ),
    lambda of: f"named = {{**{of.dict}, 'w': {of.any}}}",
    lambda of: (
        f"named = {{key: value for key, value in {of.dict}.items() if "
        f"{of.one_of('True', 'isinstance(key, str)', 'value is not x')}}}"
    ),
    lambda of: f"made = [*{of.list}, *{of.one_of('range(2)', 'table', '(x, y)')}]",
    lambda of: (
        f"for key in {of.one_of('table', 'list(table)', 'dict(named)')}:\n"
        f"    table[{of.one_of('key', '(key, 1)')}] = {of.any}"
    ),
    lambda of: (
        f"seen.append(sorted([3, n, {of.number}, 1], key=lambda q: "
        f"{of.one_of('-q', 'q % 2', '(q == n, q)')}, reverse={of.one_of(True, False)}))"
    ),
    lambda of: (
        f"made = list(map(lambda q{of.one_of('', ', w=n')}: q + {of.number}, [1, n, {of.tensor}]))"
    ),
    lambda of: (
        "made = list(filter("
        f"{of.one_of('None', 'lambda q: q is not x', 'lambda q: isinstance(q, int)')}, [0, n, "
        "'s', None, 1]))"
    ),
    lambda of: (
        f"t = functools.reduce({of.one_of('operator.add', 'lambda a, b: a * b')}, "
        f"[{of.tensor}, {of.number}, {of.tensor}])"
    ),
    lambda of: (
        "made = list(itertools."
        + of.one_of(
            "accumulate([1, n, 3])",
            "chain(items, made)",
            "zip_longest([1], [x, y])",
            "product([1, 2], [n])",
            "islice(items, 1, None)",
        )
        + ")"
    ),
    lambda of: (
        f"seen.extend((m, len(list(group))) for m, group in itertools.groupby([1, 1, "
        f"n, {of.number}]))"
    ),
    lambda of: (
        f"k = {of.one_of('max', 'min')}([{of.number}, n, 2], key=lambda q: "
        f"{of.one_of('-q', 'abs(q)', 'q % 3')})"
    ),
    lambda of: (
        f"seen.append({of.one_of('any', 'all')}(q {of.one_of('is x', '== n', '')} for "
        f"q in [n, 1, 0]))"
    ),
    lambda of: f"m, *made, k = {of.one_of('items', '(1, x, 2, n)', '[n, 3]', 'range(3)')}",
    lambda of: "(m, (t, k)), made[:1] = (n, (x, 2)), [y]",
    lambda of: f"seen.append({of.list}.{of.one_of('index(n)', 'count(1)', 'index(7)')})",
    lambda of: (
        f"m = {of.number}\n"
        f"seen.append(f'{{n:>4}}|{{k!r:.3}}|{{m:03d}}|{{len(items)}}' + '-'.join(['a', "
        "str(n)]).upper())"
    ),
    lambda of: f"key, value = {of.dict}.popitem()\nseen.append((key, value))",
    lambda of: (
        f"it = iter({of.list})\n"
        "seen.append(next(it, None))\n"
        f"made = [{of.any}]\n"
        "seen.append(list(it))"
    ),
    lambda of: (
        f"del {of.one_of('t', 'm', 'u')}\n{of.one_of('t = u = x', 'm = 1', 't = m = u = y')}"
    ),
)


_FUNCTIONS: tuple[Statement, ...] = (
    lambda of: (
        f"t = helper(*[{of.tensor}, {of.number}], *({of.one_of('', '1,', '1, n')}), "
        f"**{{'key': {of.number}, 'more': 1}})"
    ),
    lambda of: (
        "made = [lambda: m for m in range(3)]\n"
        "seen.append([f() for f in made])\n"
        f"made = [lambda m=m: m + {of.number} for m in range(2)]\n"
        "seen.append(made[-1]())"
    ),
    lambda of: (
        "def escapes(q, *, w=n):\n"
        "    nonlocal k\n"
        "    k = q\n"
        "    return [k, w, t]\n"
        "seen.append(escapes)\n"
        "seen.append(escapes(n))"
    ),
    lambda of: f"seen.append(lambda q, w={of.any}: (q, w, n, u))",
    lambda of: (
        "def cell():\n"
        f"    held = {of.any}\n"
        "    def put(q):\n"
        "        nonlocal held\n"
        "        held, q = q, held\n"
        "        return q\n"
        "    return put, lambda: held\n"
        "put, get = cell()\n"
        f"seen.append((put({of.any}), get()))\n"
        "made = [put, get]"
    ),
    lambda of: (
        "def early(q):\n"
        "    for m in range(3):\n"
        "        try:\n"
        f"            if {of.condition}:\n"
        f"                {of.one_of('return q', 'break', 'continue', 'raise KeyError(m)')}\n"
        f"            q = q + {of.number}\n"
        "        except KeyError:\n"
        f"            {of.one_of('return m', 'raise', 'q = m')}\n"
        "        finally:\n"
        "            seen.append(m)\n"
        f"            {of.one_of('pass', 'if m: break', 'if m: return seen[0]')}\n"
        "    else:\n"
        "        return q\n"
        f"t = early({of.tensor})"
    ),
    lambda of: (
        f"gen = produced({of.any}, {of.one_of(1, 2, 3)})\n"
        "seen.append(next(gen, None))\n"
        f"u = {of.tensor}\n"
        "seen.append("
        f"{of.one_of('next(gen, 7)', 'gen.send(n)', 'list(gen)', 'gen.close()', 'gen')})"
    ),
    lambda of: (
        f"gen = guarded(seen, {of.one_of(0, 2)})\n"
        "for m in gen:\n"
        f"    {of.one_of('break', 'seen.append(m)', 't = t + m')}\n"
        f"{of.one_of('gen.close()', 'del gen', 'seen.append(list(gen))')}"
    ),
    lambda of: (
        f"gen = ({of.one_of('q', 'q + k', 'x * q')} for q in [1, n, 3] if q != {of.number})\n"
        "seen.append(next(gen, None))\n"
        "k = 1\n"
        f"made = {of.one_of('list(gen)', '[*gen]', 'list(zip(gen, gen))', '[gen]')}"
    ),
    lambda of: (
        f"part = functools.partial(helper, {of.tensor}, key={of.number})\n"
        f"t = part({of.number})\n"
        "seen.append(part)"
    ),
    lambda of: (
        "@functools.lru_cache(maxsize=None)\n"
        "def cached(q):\n"
        "    seen.append(q)\n"
        "    return q + 1\n"
        "m = cached(n) + cached(n)"
    ),
    lambda of: f"t = decorated({of.tensor}, b={of.number})",
    lambda of: f"k = walked([1, [n, {of.number}], (2, [])])",
    lambda of: (
        f"COUNTER += {of.one_of('1', 'n')}\nREGISTRY[{of.one_of(repr('a'), 'n')}] = {of.any}"
    ),
    lambda of: "REGISTRY['order'].append(n)\nseen.append(len(REGISTRY['order']))",
    lambda of: (
        f"m = {of.number}\n"
        f"seen.append({of.one_of('0 < m <= n != 2', '1 < n < m', 'n == m == 2')} if "
        "isinstance(m, int) else None)"
    ),
    lambda of: f"made = [w for q in [1, n] if (w := q * 2) != {of.number}]",
    lambda of: f"made = [[q * w for w in range(q)] for q in range({of.one_of('n', '3')})]",
    lambda of: (
        f"print({of.one_of('n', 'seen and seen[-1].__class__', repr('text'))}, k if "
        f"isinstance(k, int) else 'k', end={of.one_of(repr(';'), 'None')})"
    ),
    lambda of: (
        "import math\n"
        "k = "
        + of.one_of(
            "math.floor(n / 2)",
            "math.sqrt(n)",
            "divmod(n, 2)[1]",
            "round(n / 3, 2)",
            "pow(n, 2, 5)",
            "int(str(n))",
        )
    ),
)


_CONTROL: tuple[Statement, ...] = (
    lambda of: (
        "with contextlib.suppress("
        f"{of.one_of('KeyError', 'Exception', 'ValueError, TypeError')}):\n"
        f"    u = {of.tensor}\n"
        f"    {of.one_of('table[9]', 'int(repr(n) + chr(97))', 'n // 0', 'made.append(u)')}\n"
        "    seen.append('on')"
    ),
    lambda of: (
        f"with Bag({of.any}) as bag, tracked(seen, 'both'):\n"
        f"    t = {of.tensor}\n"
        "    "
        + of.one_of("seen.append(bag)", "raise KeyError(n)", "1 // 0", "bag += t", "items[9]")
        + "\n"
        "seen.append(bag)"
    ),
    lambda of: (
        "with contextlib.ExitStack() as stack:\n"
        "    stack.callback(seen.append, n)\n"
        "    k = stack.enter_context(tracked(seen, 0))\n"
        f"    t = {of.tensor}"
    ),
    lambda of: (
        "for m in range(4):\n"
        "    try:\n"
        f"        t = t + {of.number}\n"
        f"        if {of.condition}:\n"
        f"            {of.one_of('break', 'continue')}\n"
        "    finally:\n"
        "        seen.append(m)"
    ),
    lambda of: (
        "while True:\n"
        "    try:\n"
        f"        seen.append({of.number})\n"
        f"        if {of.condition}:\n"
        "            raise ValueError(n)\n"
        "    except ValueError as error:\n"
        "        seen.append(error.args)\n"
        "        break\n"
        "    else:\n"
        "        break\n"
        "    finally:\n"
        f"        t = {of.tensor}"
    ),
    lambda of: (
        "try:\n"
        "    try:\n"
        f"        t = {of.tensor}\n"
        f"        {of.one_of('table[8]', 'raise ValueError', 'n.missing', 'seen.append(9)')}\n"
        f"    except {of.one_of('KeyError', 'Exception')} as first:\n"
        f"        raise TypeError(n) {of.one_of('from first', 'from None', '')}\n"
        "    else:\n"
        f"        k = {of.number}\n"
        "except Exception as error:\n"
        "    seen.append((type(error).__name__, type(error.__cause__).__name__, "
        "type(error.__context__).__name__, error.__suppress_context__))"
    ),
    lambda of: (
        "try:\n"
        "    "
        + of.one_of(
            "t.missing",
            "thing.missing",
            "unknown",
            "m()",
            "Thing()",
            "helper()",
            "x + None",
            "len(5)",
            "[][n]",
            "int(chr(98))",
        )
        + "\n"
        "except Exception as error:\n"
        "    seen.append(repr(error) if not isinstance(error, RuntimeError) else 0)"
    ),
    lambda of: (
        f"match {of.one_of('items', 'table', 'thing', 'n', '(n, x)')}:\n"
        "    case [first, *_]:\n"
        "        seen.append(('list', first))\n"
        f"    case {{'a': value, **others}}:\n"
        "        seen.append((value, len(others)))\n"
        "    case Child(value=value):\n"
        "        seen.append(value)\n"
        "    case 2 | 4:\n"
        f"        t = {of.tensor}\n"
        "    case int(m) if m > 2:\n"
        "        k = m\n"
        "    case _:\n"
        "        seen.append('other')"
    ),
    lambda of: (
        "for row in "
        f"{of.one_of('x', 'x.unbind()', 'torch.stack([x, y])', 'x.split(2)', 'enumerate(y)')}"
        ":\n"
        "    seen.append(row)\n"
        f"    {of.one_of('pass', 'break', 't = t + 1', 'm = n')}"
    ),
    lambda of: (
        "for m in range("
        f"{of.one_of('x.shape[0]', 'int(i.max())', 'len(x)', 'i[1].item()', 'min(n, 3)')}):\n"
        f"    t = {of.tensor}"
    ),
    lambda of: (
        "turns = 0\n"
        f"while {of.one_of('t.sum() < 9', 'i.sum() > turns', 'turns < n', 'bool(b.any())')} "
        "and turns < 3:\n"
        "    turns += 1\n"
        f"    t = t + {of.number}"
    ),
    lambda of: f"assert {of.condition}, {of.one_of('n', repr('no'))}",
    lambda of: (
        f"m = {of.number} {of.one_of('and', 'or')} {of.number} if {of.condition} "
        f"{of.one_of('and', 'or')} {of.condition} else 5"
    ),
    lambda of: (
        f"if {of.condition} and not {of.condition}:\n"
        f"    t = {of.tensor}\n"
        f"elif {of.condition}:\n"
        f"    k = {of.number}\n"
        "else:\n"
        f"    made = [{of.any}]"
    ),
)


_TENSORS: tuple[Statement, ...] = (
    lambda of: (
        f"{of.input}."
        + of.one_of(
            "add_(1)",
            "mul_(2)",
            "copy_(y)",
            "fill_(n)",
            "sub_(x)",
            "neg_()",
            "t_()",
            "clamp_(min=1)",
        )
    ),
    lambda of: f"z.{of.one_of('add_(1)', 'mul_(n)', 'zero_()')}\nt = {of.tensor}\nseen.append(z)",
    lambda of: (
        f"u = {of.input}"
        + of.one_of(
            "[1:]",
            ".view(-1)",
            "[::2]",
            "[None]",
            ".unsqueeze(-1)",
            ".expand(2, -1)",
            ".flip(0)",
            ".detach()",
        )
        + "\n"
        f"u{of.one_of('.add_(1)', '[0] = n', ' *= 2', '.zero_()')}"
    ),
    lambda of: (
        f"{of.input}[{of.one_of('1:', '::2', '-1', 'b', 'i % 2', '...', ':, None', 'x > 1')}] "
        f"{of.one_of('=', '+=', '*=')} {of.one_of('n', '1.5', 'y[0]', '0')}"
    ),
    lambda of: f"x[1:] = {of.one_of('y[:-1]', 'x[:-1]', 'v[1:]', 'z')}",
    lambda of: (
        f"torch.{of.one_of('add', 'mul', 'maximum')}({of.one_of('x', 'y', 'v')}, "
        f"{of.one_of('y', 'v', 'x')}, "
        f"out={of.one_of('u', 't', 'y', 'torch.empty(0)', 'z')})"
    ),
    lambda of: f"t = net({of.tensor})\nseen.append(net.calls)",
    lambda of: (
        of.one_of(
            "net.eval()",
            "net.train(flag)",
            "net.steps = net.steps + 1",
            "net.outputs.clear()",
            "net.weight.data.mul_(2)",
            "net.extra = n",
            "net.weight.requires_grad_(flag)",
        )
        + "\n"
        f"u = net({of.tensor})"
    ),
    lambda of: (
        "t = "
        + of.one_of(
            "w * x",
            "w + n",
            "w.sin() * y",
            "(w ** 2).cumsum(0)",
            "w[1:]",
            "net(w)",
            "w.exp().sum()",
        )
    ),
    lambda of: f"t = ({of.tensor} * w.sum()).sum()\nseen.append(torch.autograd.grad(t, w)[0])",
    lambda of: f"(w * {of.tensor}.detach()).sum().backward()",
    lambda of: (
        f"t = i {of.one_of('+ 1', '// 2', '/ 2', '% 2', '* x', '** 2', '> 1', '.float() - y')}"
    ),
    lambda of: (
        "t = "
        + of.one_of("b", "~b", "b & (x > 1)", "b.logical_or(i > 1)", "b.sum()", "b * x", "b.any()")
    ),
    lambda of: (
        "t = "
        + of.one_of(
            "x[b]",
            "x[i % 2]",
            "x.nonzero()",
            "torch.where(b)[0]",
            "i.unique()",
            "x.masked_fill(b, n)",
            "x.gather(0, i % 2)",
            "b.nonzero().flatten()",
        )
    ),
    lambda of: (
        "t = "
        + of.one_of(
            "v + x",
            "v.view(-1)",
            "v.contiguous()",
            "v * v",
            "v.reshape(-1, 1)",
            "v.t()",
            "v[1:]",
        )
        + "\n"
        "seen.append((t.stride(), t.is_contiguous()))"
    ),
    lambda of: (
        f"i{of.one_of(' += 1', '[0] = n', '.add_(n)', ' *= 2', ' //= 2', '[b] = 0', ' += 0.5')}"
    ),
    lambda of: (
        "seen.append("
        + of.one_of(
            "x.tolist()",
            "i.tolist()",
            "t.dtype",
            "t.shape",
            "x.device",
            "t.requires_grad",
            "float(x.sum())",
            "x.size()",
            "t.dim() == n",
            "bool(b[0])",
            "t.is_leaf",
            "repr(i)",
            "len(x)",
            "x is z",
            "x.data_ptr() == z.data_ptr()",
        )
        + ")"
    ),
    lambda of: (
        "with torch."
        + of.one_of("no_grad()", "enable_grad()", "set_grad_enabled(flag)", "inference_mode(False)")
        + ":\n"
        f"    t = w * {of.tensor}\n"
        "    seen.append(torch.is_grad_enabled())"
    ),
    lambda of: (
        "a, *made = "
        + of.one_of("x.chunk(2)", "torch.stack([x, y])", "x.split(1)", "torch.sort(x)", "x.max(0)")
        + "\n"
        "t = a"
    ),
    lambda of: (
        f"t = torch.{of.one_of('zeros', 'ones', 'arange')}("
        f"{of.one_of('n', 'x.shape[0]', 'len(items)', '(n, 2)')})"
    ),
    lambda of: (
        f"t = torch.{of.one_of('cat', 'stack')}([{of.tensor}, {of.tensor}{of.one_of('', ', x')}])"
    ),
    lambda of: (
        f"t = {of.one_of('x', 'v')}.to("
        f"{of.one_of('torch.float64', 'torch.int32', 'torch.float32')}) + {of.number}"
    ),
    lambda of: (
        "x.flag = n\n"
        f"seen.append({of.one_of('x.flag', 'hasattr(y, chr(97))', 'getattr(x, repr(n), 3)')})"
    ),
    lambda of: (
        "torch.manual_seed(n)\n"
        "t = torch."
        + of.one_of(
            "rand(3)", "randn_like(x)", "nn.functional.dropout(x, 0.5, flag)", "bernoulli(y)"
        )
    ),
)


def _raising(of: Expressions) -> str:
    """What raises, or not, for what tensors hold: alone, handled, suppressed, with effects and
    writes before and after.
    """
    by = of.one_of("0", "0", "1", "n", "-1", "k")
    line = of.one_of(
        lambda: f"t = x[i + {by}]",
        lambda: f"u = torch.gather({of.input}, 0, i * {of.one_of('1', '2')})",
        lambda: f"t = w[i + {by}] * {of.number}",
        lambda: f"m = i {of.one_of('//', '%')} (i + {of.one_of('0', '1', 'n')})",
        lambda: f"torch.linalg.cholesky(torch.diag(x - {by}))",
        lambda: f"x[i + {by}] = {of.number}",
        lambda: f"torch._assert_async((x > {by}).all())",
        lambda: f"t = torch.rand(x.shape[0])[i + {by}] + torch.rand(x.shape[0])",
        lambda: f"x[i + {by}]",
        lambda: (
            "net.steps += 1\n"
            f"t = torch.embedding(torch.stack([x, y]), b.long() + {by})\n"
            "net.steps += 1"
        ),
        lambda: f"{of.one_of('x', 'y')}.index_add_(0, i + {by}, torch.ones(x.shape[0]))",
        lambda: (
            f"{of.one_of('x', 't', 'y')}[1:] {of.one_of('=', '+=')} {of.one_of('x', 't', 'y')}[:-1]"
        ),
        lambda: f"u = torch.nn.functional.one_hot(i, x.shape[0] - {of.one_of('0', '1')})",
    )()
    body = f"seen.append({of.any})\n{line}\nseen.append('after')"
    inside = "\n".join(f"    {part}" for part in body.split("\n"))
    return of.one_of(
        lambda: line,
        lambda: body,
        lambda: (
            "try:\n"
            f"{inside}\n"
            "except (IndexError, RuntimeError) as error:\n"
            "    seen.append(type(error).__name__)"
        ),
        lambda: f"with contextlib.suppress(IndexError):\n{inside}",
        lambda: f"try:\n{inside}\nfinally:\n    table['end'] = {of.any}",
        lambda: f"with tracked(seen, 3) as k:\n{inside}",
        lambda: (
            "for m in range(2):\n"
            "    try:\n"
            "        x.mul_(2)\n"
            "        t = t + x[i + m].sum()\n"
            "    except IndexError:\n"
            "        seen.append(m)"
        ),
        lambda: f"with torch.no_grad():\n{inside}",
    )()


def _texts(of: Expressions) -> str:
    """Text of tensors and numbers: made, put together, kept, printed, read, before and after
    writes.
    """
    a_text = of.one_of(
        lambda: f"f'{{{of.name}}} {{{of.name}.sum():.2f}}|{{{of.name}.sum()!r:>30}}'",
        lambda: f"f'{{{of.number}}}: {{({of.tensor}).mean()}} {{{of.any}!s}}'",
        lambda: f"'%s %d|%6.2f %r' % ({of.any}, {of.number}, {of.name}.sum(), {of.any})",
        lambda: f"'{{0}} {{1:.1f}} {{0!r}} {{2}}'.format({of.any}, {of.name}.sum(), {of.any})",
        lambda: f"str({of.any}) + repr([{of.name}, {of.any}])",
        lambda: f"str({{'a': {of.any}, 1: ({of.name},)}})",
        lambda: f"str(Point({of.any}, {of.name})) + str(Pair({of.any}, 1))",
        lambda: f"', '.join([str(q) for q in ({of.any}, {of.name}.sum(), n)])",
        lambda: f"f'{{{of.name}.sum().item():.2f}} {{int({of.name}.sum()) % 3}}'",
    )()
    return of.one_of(
        lambda: f"seen.append({a_text})",
        lambda: f"print({a_text}, {of.any})",
        lambda: f"s = {a_text}\n{of.input}.add_(1)\ns += f' {{{of.input}}}'\nseen.append(s)",
        lambda: (
            f"s = {a_text}\n"
            f"for m in range({of.one_of(0, 1, 3)}):\n"
            f"    s = f'{{s}}, {{x * m}}'\n"
            "print(s)"
        ),
        lambda: f"{of.thing}.value = {a_text}\nREGISTRY['order'].append({of.thing}.value)",
        lambda: f"named['a'] = {a_text}\nmade = [named['a'].upper(), named['a'][2:5], {of.any}]",
        lambda: f"s = {a_text}\nk = len(s) if {of.condition} else s.count('1')",
        lambda: f"s = {a_text}\nseen.append(s == 'a' or '2' in s)\nprint(s)",
        lambda: (
            f"""
try:
    if {of.condition}:
        raise ValueError({a_text})
    seen.append({a_text})
except ValueError as error:
    seen.append((str(error), error.args))
    print(f'{{error}} {{error!r}}')"""
        ),
        lambda: (
            f"""
def told(q, s={a_text}):
    nonlocal k
    k += 1
    return f'{{s}} {{q.sum():.1f}} {{k}}'
seen.append(told({of.name}))
t = t * 2
seen.append(told(t, s={a_text}) if {of.condition} else told)"""
        ),
        lambda: f"seen.extend(f'{{q}}' for q in ({of.any}, {of.name}, {a_text}))",
        lambda: f"torch._check_with(ValueError, {of.condition} or True, lambda: {a_text})",
    )()
