"""What every random program finds in its module: classes, functions, generators and a module with
state.
"""

PRELUDE = '''
import collections, contextlib, copy, dataclasses, functools, itertools, operator, traceback
import torch

COUNTER = 0
REGISTRY = {"order": []}

class Degrees:
    """A data descriptor that keeps a log."""
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner):
        return self if instance is None else getattr(instance, self.name, 36)
    def __set__(self, instance, value):
        instance.log.append(self.name)
        setattr(instance, self.name, value)

class Thing:
    scale = 2
    degrees = Degrees()
    def __init__(self, value):
        self.value = value
        self.log = []
    @property
    def doubled(self):
        return self.value * 2
    @doubled.setter
    def doubled(self, value):
        self.value = value / 2
    @classmethod
    def made_of(cls, value):
        return cls(value)
    @staticmethod
    def plain(value):
        return [value]
    def add(self, other, *more, sign=1):
        self.log.append(len(more))
        return self.value + sign * other
    def __call__(self, x):
        return x * self.scale
    def __len__(self):
        return len(self.log)
    def __eq__(self, other):
        return isinstance(other, Thing) and self.log == other.log
    __hash__ = None
    def __repr__(self):
        held = isinstance(self.value, (Thing, list, dict))
        return f"{type(self).__name__}({'...' if held else self.value})"
    def __getattr__(self, name):
        if name.startswith("dynamic"):
            return name
        raise AttributeError(name)

class Child(Thing):
    def add(self, other, *more, sign=1):
        return super().add(other, *more, sign=sign) * 3

class Mixed:
    def add(self, other, *more, sign=1):
        self.log.append("mixed")
        return super().add(other, *more, sign=-sign)

class Both(Mixed, Child):
    scale = 3

@dataclasses.dataclass
class Point:
    left: object
    right: object = 0
    tags: list = dataclasses.field(default_factory=list)
    def __post_init__(self):
        self.tags.append("made")

@dataclasses.dataclass(frozen=True)
class Fixed:
    size: int = 1
    name: str = "fixed"

Pair = collections.namedtuple("Pair", "first second")

class Bag:
    """Operators of its own."""
    def __init__(self, *held):
        self.held = list(held)
    def __repr__(self):
        return "Bag of " + str(len(self.held))
    def __getitem__(self, key):
        return self.held[key]
    def __setitem__(self, key, value):
        self.held[key] = value
    def __contains__(self, value):
        return any(value is item for item in self.held)
    def __iter__(self):
        yield from self.held
    def __len__(self):
        return len(self.held)
    def __bool__(self):
        return len(self.held) != 1
    def __iadd__(self, other):
        self.held.append(other)
        return self
    def __add__(self, other):
        return Bag(*self.held, other)
    def __radd__(self, other):
        return Bag(other, *self.held)
    def __enter__(self):
        self.held.append("in")
        return self
    def __exit__(self, kind, error, trace):
        self.held.append(kind and kind.__name__)
        return kind is not None and issubclass(kind, (KeyError, ZeroDivisionError))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.5))
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0
        self.outputs = []
    def forward(self, x):
        self.calls += 1
        if self.training:
            self.steps.add_(1)
            self.outputs.append(x.shape[0] if x.ndim else -1)
        return x * self.weight + self.steps

@contextlib.contextmanager
def tracked(log, name):
    log.append(name)
    try:
        yield len(log)
    except KeyError:
        log.append("caught")
    finally:
        log.append(-1)

def helper(a, b=1, *rest, key=None, **named):
    if key is not None:
        a = a + key
    return a * b + sum(rest) + len(named)

def counted(a):
    global COUNTER
    COUNTER += 1
    return a + COUNTER

def produced(a, count):
    for at in range(count):
        got = yield a + at
        if got:
            yield got

def guarded(log, count):
    try:
        for at in range(count):
            yield at
    finally:
        log.append("closed")

def walked(node):
    if isinstance(node, (list, tuple)):
        return sum([walked(item) for item in node])
    return node if isinstance(node, int) else 1

def traced(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        REGISTRY["order"].append(function.__name__)
        return function(*args, **kwargs)
    return wrapper

@traced
def decorated(a, b=2):
    return a * b
'''
