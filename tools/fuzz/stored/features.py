"""What programs of the stored fuzz consist of: definitions, an expression of `x`, and places where
an edit can change them.

A place is «one|another|...»: each process has one of the alternatives. `$` is the number of the
feature in its program, which keeps names apart. `context` is an expression of a context manager
that surrounds eager and compiled calls.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """Definitions in the main module, an expression of `x`, definitions in the helper module."""

    main: str
    expression: str
    helper: str = ""
    context: str = ""


FEATURES: dict[str, Feature] = {}


def _add(name: str, main: str, expression: str, helper: str = "", context: str = "") -> None:
    assert name not in FEATURES, name
    FEATURES[name] = Feature(main.strip("\n"), expression, helper.strip("\n"), context)


# ---------------------------------------------------------------- values

_add("number", "SCALE$ = «2.0|3.0|2»", "x * SCALE$")
_add("text", "WHICH$ = '«sin|cos|tanh»'", "getattr(torch, WHICH$)(x)")
_add("tuple", "PAIR$ = («1.0|2.0», «3|4»)", "x * PAIR$[0] + PAIR$[1]")
_add("list", "ITEMS$ = [1.0, «2.0|3.0»«|, 4.0»]", "x * sum(ITEMS$)")
_add("dict", "TABLE$ = {'«a|b»': 2.0, 'c': «3.0|4.0»}", "x * TABLE$.get('a', 7.0) * TABLE$['c']")
_add("set", "NAMES$ = {'a', '«b|c»'}", "x * (2.0 if 'b' in NAMES$ else 3.0)")
_add("frozenset", "NAMES$ = frozenset({1, «2|3»})", "x * (2.0 if 2 in NAMES$ else 3.0) + len(NAMES$)")
_add("slice", "PART$ = slice(0, «2|3»)", "x + x[..., PART$].sum()")
_add("range", "STEPS$ = range(«2|3»)", "x + sum(STEPS$)")
_add("bytes", "RAW$ = b'«a|b»'", "x + RAW$[0]")
_add("dtype", "DTYPE$ = torch.«float32|float64»", "x.to(DTYPE$) * 2")
_add("zero", "ZERO$ = «0.0|-0.0»", "torch.copysign(x, torch.full_like(x, ZERO$))")
_add("nan", "ODD$ = float('«nan|inf»')", "torch.where(x > ODD$, x, x + 1)")
_add("bool_number", "FLAG$ = «True|1|1.0»", "(x > 0) * FLAG$ + x")
_add("none", "MAYBE$ = «None|2.0|0»", "x * 3 if MAYBE$ is None else x * MAYBE$ + 1")
_add("big", "BIG$ = «2**70|2**71»", "x * float(BIG$ % 97)")
_add("nested", "CONFIG$ = {'a': [{'b': («1|2», 3)}]}", "x * CONFIG$['a'][0]['b'][0]")
_add("constant_tensor", "VALUES$ = [1.0, «2.0|3.0»]", "x + torch.tensor(VALUES$).sum()")
_add("global_tensor", "WEIGHT$ = torch.full((), «2.0|3.0»)", "x * WEIGHT$")
_add("global_shape", "WEIGHT$ = torch.ones(«2|3»)", "x * WEIGHT$.shape[0] + WEIGHT$.sum()")
_add("array", "ARRAY$ = np.array([1.0, «2.0|3.0»])", "x + float(ARRAY$.sum())")
_add("array_tensor", "ARRAY$ = np.float32(«2.0|3.0»)", "x * torch.from_numpy(np.asarray([ARRAY$])).sum()")
_add("namespace", "SPACE$ = types.SimpleNamespace(a=«1|2»«|, b=3»)", "x * SPACE$.a + hasattr(SPACE$, 'b')")
_add("named_tuple", "Pair$ = collections.namedtuple('Pair$', '«a b|b a»')\nPAIR$ = Pair$(1, 2)", "x * PAIR$.a")
_add("ordered", "ORDER$ = collections.OrderedDict(«a=1, b=2|b=1, a=2»)", "x * list(ORDER$.values())[0] + ('a' == next(iter(ORDER$)))")
_add("default_dict", "DEFAULT$ = collections.defaultdict(lambda: «1|2»)", "x * DEFAULT$['missing$']")
_add("chain_map", "MAPS$ = collections.ChainMap({'a': «1|2»}, {'b': 3})", "x * MAPS$['a']")
_add("deque", "QUEUE$ = collections.deque([«1|2», 3])", "x * QUEUE$[0]")
_add("enumeration", "class Kind$(enum.Enum):\n    A = «1|2»\n    B = «3|1»", "x * Kind$.A.value + (Kind$.A is Kind$.B)")
_add("enum_method", "class Kind$(enum.IntFlag):\n    A = 1\n    B = 2\n    def scale(self):\n        return «2|3» * self.value\nHELD$ = Kind$.«A|B»", "x * HELD$.scale() + (Kind$.A in HELD$)")
_add("string_set_order", "WORDS$ = {'a', 'b', 'c', 'd', 'e', 'f'}", "x * (1 + list(WORDS$).index('c'))")
_add("hash_of_text", "WORD$ = 'word'", "x * (1 + hash(WORD$) % 5)")
_add("identity", "THING$ = object()", "x * (1 + id(THING$) // 64 % 3)")
_add("repr_of_object", "class Thing$: pass\nTHING$ = Thing$()", "x * (1 + int(repr(THING$)[-4:-1], 16) % 3)")

# ---------------------------------------------------------------- functions

_add("function", "def scaled$(x):\n    return x * «2|3»", "scaled$(x)")
_add("operator", "def scaled$(x):\n    return x «+|-|*» 3", "scaled$(x)")
_add("method_name", "def scaled$(x):\n    return x.«sin|cos»()", "scaled$(x)")
_add("global_of_callee", "INNER$ = «2|3»\ndef scaled$(x):\n    return x * INNER$", "scaled$(x)")
_add("imported", "from «»{helper} import scaled$", "scaled$(x)", "def scaled$(x):\n    return x * «2|3»")
_add("by_module", "", "{helper}.scaled$(x)", "DEEP$ = «2|3»\ndef scaled$(x):\n    return x * DEEP$")
_add("module_value", "", "x * {helper}.VALUE$", "VALUE$ = «2|3»")
_add("module_missing", "", "x * (2 if hasattr({helper}, 'MAYBE$') else 3)", "«MAYBE$ = 1|OTHER$ = 1»")
_add("default", "def scaled$(x, n=«2|3»):\n    return x * n", "scaled$(x)")
_add("keyword_default", "def scaled$(x, *, n=«2|3»):\n    return x * n", "scaled$(x)")
_add("default_object", "class Held$:\n    n = «2|3»\ndef scaled$(x, held=Held$()):\n    return x * held.n", "scaled$(x)")
_add("lambda", "scaled$ = lambda x: x * «2|3»", "scaled$(x)")
_add("closure", "def make$(n):\n    def scaled(x):\n        return x * n\n    return scaled\nscaled$ = make$(«2|3»)", "scaled$(x)")
_add("closure_function", "def one$(x): return x * 2\ndef two$(x): return x * 3\ndef make$(f):\n    return lambda x: f(x)\nscaled$ = make$(«one$|two$»)", "scaled$(x)")
_add("closure_object", "class Held$:\n    def __init__(self, n): self.n = n\ndef make$(held):\n    return lambda x: x * held.n\nscaled$ = make$(Held$(«2|3»))", "scaled$(x)")
_add("lambdas_of_a_line", "LIST$ = [lambda x: x * 2, lambda x: x * 3]\nscaled$ = LIST$[«0|1»]", "scaled$(x)")
_add("partial", "def scale$(x, n, m=1): return x * n + m\nscaled$ = functools.partial(scale$, n=«2|3»«|, m=4»)", "scaled$(x)")
_add("partial_function", "def one$(x, n): return x * n\ndef two$(x, n): return x + n\nscaled$ = functools.partial(«one$|two$», n=2)", "scaled$(x)")
_add("decorator", "def twice$(f):\n    @functools.wraps(f)\n    def run(x):\n        return f(x) * «2|3»\n    return run\n@twice$\ndef scaled$(x):\n    return x + «1|2»", "scaled$(x)")
_add("plain_decorator", "def twice$(f):\n    def run(x):\n        return f(f(x)«|+1»)\n    return run\n@twice$\ndef scaled$(x):\n    return x + «1|2»", "scaled$(x)")
_add("removed_decorator", "def twice$(f):\n    return lambda x: f(f(x))\n«@twice$|»\ndef scaled$(x):\n    return x + 1", "scaled$(x)")
_add("helper_decorator", "@{helper}.twice$\ndef scaled$(x):\n    return x + 1", "scaled$(x)", "def twice$(f):\n    @functools.wraps(f)\n    def run(*args):\n        return f(*args) * «2|3»\n    return run")
_add("lru_cache", "@functools.lru_cache\ndef scale$(n):\n    return n * «2|3»", "x * scale$(4)")
_add("cached_property", "class Held$:\n    @functools.cached_property\n    def n(self): return «2|3»\nHELD$ = Held$()", "x * HELD$.n")
_add("generator", "def steps$():\n    yield 1\n    yield «2|3»", "x * sum(steps$())")
_add("context_manager", "@contextlib.contextmanager\ndef scaled$():\n    yield «2|3»\ndef use$(x):\n    with scaled$() as n:\n        return x * n", "use$(x)")
_add("context_class", "class Scaled$:\n    def __enter__(self): return «2|3»\n    def __exit__(self, *_): return False\ndef use$(x):\n    with Scaled$() as n:\n        return x * n", "use$(x)")
_add("single_dispatch", "@functools.singledispatch\ndef of$(value): return 1\n@of$.register\ndef _(value: «int|float»): return 5", "x * of$(2)")
_add("key_function", "def key$(n): return «n|-n»", "x * sorted([3, 1, 2], key=key$)[0]")
_add("mapped", "def plus$(n): return n + «1|2»", "x * sum(map(plus$, [1, 2]))")
_add("reduced", "def join$(a, b): return a «+|*» b", "x * functools.reduce(join$, [2, 3, 4])")
_add("executed", "SPACE$ = {'torch': torch}\nexec('def scaled(x):\\n    return x * «2|3»', SPACE$)\nscaled$ = SPACE$['scaled']", "scaled$(x)")
_add("executed_closure", "SPACE$ = {}\nexec('def make(n):\\n    return lambda x: x * n', SPACE$)\nscaled$ = SPACE$['make'](«2|3»)", "scaled$(x)")
_add("changed_code", "def one$(x): return x * 2\ndef two$(x): return x * 3\none$.__code__ = «one$|two$».__code__", "one$(x)")
_add("changed_defaults", "def one$(x, n=2): return x * n\none$.__defaults__ = («2|3»,)", "one$(x)")
_add("function_attribute", "def one$(x): return x * one$.n\none$.n = «2|3»", "one$(x)")
_add("function_name", "def «first$|second$»(x): return x\nwhich$ = first$ if 'first$' in globals() else second$", "x * (2 if which$.__name__ == 'first$' else 3)")
_add("docstring", "def one$(x):\n    '''«short|longer»'''\n    return x * len(one$.__doc__)", "one$(x)")
_add("annotations", "def one$(x: «int|float»): return x * (2 if one$.__annotations__['x'] in (int, 'int') else 3)", "one$(x)")
_add("code_attributes", "def one$(a«|, b=1»): return a", "x * one$.__code__.co_argcount")
_add("signature", "def one$(a«|, b=1»): return a", "x * len(inspect.signature(one$).parameters)")
_add("recursion", "def down$(x, n):\n    return x * «2|3» if n == 0 else down$(x + 1, n - 1)", "down$(x, 2)")
_add("inner_import", "def use$(x):\n    from {helper} import inner$\n    return inner$(x)", "use$(x)", "def inner$(x):\n    return x * «2|3»")
_add("conditional_import", "try:\n    from {helper} import maybe$\nexcept ImportError:\n    maybe$ = None", "x * 2 if maybe$ is None else maybe$(x)", "«def maybe$(x): return x * 3|NOTHING$ = 1»")
_add("failing_import", "def use$(x):\n    try:\n        from {helper} import maybe$\n    except ImportError:\n        return x * 2\n    return x * maybe$", "use$(x)", "«maybe$ = 5|NOTHING$ = 1»")
_add("global_lookup", "«EXTRA$ = 3|»", "x * globals().get('EXTRA$', 2)")
_add("builtin_shadow", "«def len(x): return 7|»", "x * len([1, 2])")
_add("rebound_function", "from {helper} import original$\n«|def original$(x): return x * 9»", "original$(x)", "def original$(x): return x * 2")
_add("same_name_helper", "from {helper} import «first$|second$» as chosen$", "chosen$(x)", "def first$(x): return x * 2\ndef second$(x): return x * 3")

# ---------------------------------------------------------------- classes

_add("class_attribute", "class Held$:\n    n = «2|3»", "x * Held$.n")
_add("class_attribute_of_object", "class Held$:\n    n = «2|3»\nHELD$ = Held$()", "x * HELD$.n")
_add("shadowing_attribute", "class Held$:\n    n = 2\nHELD$ = Held$()\n«HELD$.n = 3|»", "x * HELD$.n")
_add("object_attribute", "class Held$:\n    def __init__(self, n): self.n = n\nHELD$ = Held$(«2|3»)", "x * HELD$.n")
_add("method", "class Held$:\n    def scaled(self, x): return x * «2|3»\nHELD$ = Held$()", "HELD$.scaled(x)")
_add("new_object", "class Held$:\n    def __init__(self, n): self.n = n «*|+» 3\n    def scaled(self, x): return x * self.n", "Held$(2).scaled(x)")
_add("property", "class Held$:\n    @property\n    def n(self): return «2|3»\nHELD$ = Held$()", "x * HELD$.n")
_add("static_method", "class Held$:\n    @staticmethod\n    def scaled(x): return x * «2|3»", "Held$.scaled(x)")
_add("class_method", "class Held$:\n    n = «2|3»\n    @classmethod\n    def scaled(cls, x): return x * cls.n", "Held$.scaled(x)")
_add("subclass", "class Base$:\n    def n(self): return 2\nclass Held$(Base$):\n    «def n(self): return 3|pass»\nHELD$ = Held$()", "x * HELD$.n()")
_add("super", "class Base$:\n    def n(self): return «2|3»\nclass Held$(Base$):\n    def n(self): return super().n() + 1\nHELD$ = Held$()", "x * HELD$.n()")
_add("bases", "class One$:\n    n = 2\nclass Two$:\n    n = 3\nclass Held$(«One$, Two$|Two$, One$»): pass", "x * Held$.n")
_add("helper_base", "class Held$({helper}.Base$): pass\nHELD$ = Held$()", "x * HELD$.n()", "class Base$:\n    def n(self): return «2|3»")
_add("metaclass", "class Meta$(type):\n    @property\n    def n(cls): return «2|3»\nclass Held$(metaclass=Meta$): pass", "x * Held$.n")
_add("metaclass_call", "class Meta$(type):\n    def __call__(cls, *args):\n        made = super().__call__(*args)\n        made.n = «2|3»\n        return made\nclass Held$(metaclass=Meta$): pass", "x * Held$().n")
_add("get_attr", "class Held$:\n    def __getattr__(self, name): return «2|3»\nHELD$ = Held$()", "x * HELD$.n")
_add("get_attribute", "class Held$:\n    n = 2\n    «def __getattribute__(self, name): return 3|pass»\nHELD$ = Held$()", "x * HELD$.n")
_add("descriptor", "class Of$:\n    def __get__(self, obj, cls): return «2|3»\nclass Held$:\n    n = Of$()\nHELD$ = Held$()", "x * HELD$.n")
_add("data_descriptor", "class Of$:\n    def __get__(self, obj, cls): return 2\n    «def __set__(self, obj, value): pass|»\nclass Held$:\n    n = Of$()\nHELD$ = Held$()\nHELD$.__dict__['n'] = 5", "x * HELD$.n")
_add("descriptor_state", "class Of$:\n    def __init__(self, n): self.n = n\n    def __get__(self, obj, cls): return self.n\nclass Held$:\n    n = Of$(«2|3»)\nHELD$ = Held$()", "x * HELD$.n")
_add("slots", "class Held$:\n    __slots__ = ('n',)\nHELD$ = Held$()\nHELD$.n = «2|3»", "x * HELD$.n")
_add("call", "class Held$:\n    def __call__(self, x): return x * «2|3»\nHELD$ = Held$()", "HELD$(x)")
_add("dataclass", "@dataclasses.dataclass\nclass Held$:\n    a: int = «2|3»\n    b: int = 1\n«HELD$ = Held$()|HELD$ = Held$(5)»", "x * HELD$.a + Held$().a")
_add("frozen", "@dataclasses.dataclass(frozen=«True|False», order=True)\nclass Held$:\n    a: int = 1\nONE$, TWO$ = Held$(), Held$(«1|2»)", "x * (2 if ONE$ == TWO$ else 3) + (ONE$ < TWO$)")
_add("field_factory", "@dataclasses.dataclass\nclass Held$:\n    a: list = dataclasses.field(default_factory=lambda: [«2|3»])", "x * Held$().a[0]")
_add("post_init", "@dataclasses.dataclass\nclass Held$:\n    a: int = 1\n    def __post_init__(self): self.b = self.a + «2|3»", "x * Held$().b")
_add("equality", "class Held$:\n    def __eq__(self, other): return «True|False»\n    __hash__ = object.__hash__\nHELD$ = Held$()", "x * (2 if HELD$ == 1 else 3)")
_add("truth", "class Held$:\n    def __bool__(self): return «True|False»\nHELD$ = Held$()", "x * (2 if HELD$ else 3)")
_add("length", "class Held$:\n    def __len__(self): return «2|0»\nHELD$ = Held$()", "x * (len(HELD$) + bool(HELD$))")
_add("contains", "class Held$:\n    def __contains__(self, item): return «True|False»\nHELD$ = Held$()", "x * (2 if 1 in HELD$ else 3)")
_add("iteration", "class Held$:\n    def __iter__(self): return iter([«2|3»])\nHELD$ = Held$()", "x * sum(HELD$)")
_add("items", "class Held$:\n    def __getitem__(self, at): return at + «2|3»\nHELD$ = Held$()", "x * HELD$[1]")
_add("addition", "class Held$:\n    def __add__(self, n): return n + «2|3»\n    def __radd__(self, n): return n + «4|5»\nHELD$ = Held$()", "x * (HELD$ + 1) * (1 + HELD$)")
_add("index", "class Held$:\n    def __index__(self): return «0|1»\nHELD$ = Held$()", "x * [2, 3][HELD$]")
_add("number_of", "class Held$:\n    def __float__(self): return «2.0|3.0»\nHELD$ = Held$()", "x * float(HELD$)")
_add("text_of", "class Held$:\n    def __str__(self): return '«ab|abc»'\nHELD$ = Held$()", "x * len(str(HELD$)) * len(f'{HELD$}')")
_add("hashing", "class Held$:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return self.n\n    def __eq__(self, other): return self.n == other.n\nTABLE$ = {Held$(1): 5}", "x * TABLE$.get(Held$(«1|2»), 2)")
_add("instance_check", "class Meta$(type):\n    def __instancecheck__(cls, value): return «True|False»\nclass Held$(metaclass=Meta$): pass", "x * (2 if isinstance(1, Held$) else 3)")
_add("registered", "class Held$(abc.ABC): pass\n«Held$.register(int)|»", "x * (2 if isinstance(1, Held$) else 3)")
_add("subclass_hook", "class Held$(abc.ABC):\n    @classmethod\n    def __subclasshook__(cls, other): return «True|False»", "x * (2 if isinstance(1, Held$) else 3)")
_add("protocol", "@typing.runtime_checkable\nclass Sized$(typing.Protocol):\n    def size(self): ...\nclass Held$:\n    «def size(self): pass|def other(self): pass»\nHELD$ = Held$()", "x * (2 if isinstance(HELD$, Sized$) else 3)")
_add("init_subclass", "class Base$:\n    def __init_subclass__(cls): cls.n = «2|3»\nclass Held$(Base$): pass", "x * Held$.n")
_add("class_of_object", "class One$:\n    n = 2\nclass Two$:\n    n = 3\nHELD$ = One$()\nHELD$.__class__ = «One$|Two$»", "x * HELD$.n")
_add("type_name", "class «One$|Two$»: pass\nHELD$ = (globals().get('One$') or globals().get('Two$'))()", "x * (2 if type(HELD$).__name__ == 'One$' else 3)")
_add("directory", "class Held$:\n    a = 1\n    «b = 2|»\nHELD$ = Held$()", "x * len([n for n in dir(HELD$) if n in ('a', 'b')])")
_add("members", "class Held$: pass\nHELD$ = Held$()\nHELD$.a = 1\n«HELD$.b = 4|»", "x * sum(vars(HELD$).values()) * len(HELD$.__dict__)")
_add("has_attribute", "class Held$:\n    «a = 1|b = 1»\nHELD$ = Held$()", "x * (2 if hasattr(HELD$, 'a') else 3)")
_add("patched_method", "class Held$:\n    def n(self): return 2\n«|Held$.n = lambda self: 3»\nHELD$ = Held$()", "x * HELD$.n()")
_add("instance_method", "class Held$:\n    def n(self): return 2\nHELD$ = Held$()\n«|HELD$.n = lambda: 3»", "x * HELD$.n()")
_add("bound_method", "class Held$:\n    def __init__(self, n): self.n = n\n    def scaled(self, x): return x * self.n\nscaled$ = Held$(«2|3»).scaled", "scaled$(x)")
_add("user_dict", "class Table$(dict):\n    def __missing__(self, key): return «2|3»\nTABLE$ = Table$()", "x * TABLE$['a']")
_add("user_list", "class Items$(list):\n    def __getitem__(self, at): return «2|3»\nITEMS$ = Items$([1])", "x * ITEMS$[0]")
_add("user_dict_class", "class Table$(collections.UserDict):\n    def __getitem__(self, key): return super().__getitem__(key) * «2|3»\nTABLE$ = Table$(a=2)", "x * TABLE$['a']")
_add("user_number", "class Number$(float):\n    «def __mul__(self, other): return other * 9\n    __rmul__ = __mul__|pass»\nN$ = Number$(2.0)", "x * (N$ * 3.0)")
_add("deep_copy", "class Held$:\n    n = 2\n    def __deepcopy__(self, memo):\n        made = Held$()\n        made.n = «3|4»\n        return made\nHELD$ = Held$()", "x * copy.deepcopy(HELD$).n")
_add("reduce_copy", "class Held$:\n    def __init__(self): self.n = 2\n    def __copy__(self):\n        made = Held$()\n        made.n = «3|4»\n        return made\nHELD$ = Held$()", "x * copy.copy(HELD$).n")
_add("generic", "T$ = typing.TypeVar('T$')\nclass Held$(typing.Generic[T$]):\n    n = «2|3»", "x * Held$[int]().n")
_add("exception_class", "class Wrong$(«ValueError|KeyError»): pass\ndef use$(x):\n    try:\n        raise Wrong$()\n    except ValueError:\n        return x * 2\n    except Exception:\n        return x * 3", "use$(x)")
_add("class_in_function", "def make$():\n    class Inner:\n        n = «2|3»\n    return Inner\nHELD$ = make$()()", "x * HELD$.n")
