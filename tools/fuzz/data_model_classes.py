"""Classes of programs about Python's data model: containers with slots, operators that return
NotImplemented, reflected operators. Random programs contain the text of this file.
"""

import torch


class SlotList(list):
    __slots__ = ("a", "b")


class SlotDict(dict):
    __slots__ = ("__dict__", "a")


class SlotSet(set):
    __slots__ = ("a", "b")


class Silent(dict):
    def __eq__(self, other):
        return NotImplemented

    def __or__(self, other):
        return NotImplemented

    __hash__ = None


class SilentList(list):
    def __eq__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented

    def __radd__(self, other):
        return NotImplemented

    __hash__ = None


class SilentInt(int):
    def __eq__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented

    def __add__(self, other):
        return NotImplemented

    def __rmul__(self, other):
        return NotImplemented

    __hash__ = int.__hash__


class Add:
    def __add__(self, other):
        return ("add", type(other).__name__)

    def __radd__(self, other):
        return ("radd", type(other).__name__)

    def __lt__(self, other):
        return True

    def __gt__(self, other):
        return False


class AddInherits(Add):
    pass


class AddOverrides(Add):
    def __radd__(self, other):
        return ("overridden", type(other).__name__)


class RightOnly(float):
    def __radd__(self, other):
        return "right"

    def __rsub__(self, other):
        return NotImplemented


class Named:
    __match_args__ = ("left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right


@torch._dynamo.disable
def live(items):
    return iter(items)


def stop():
    torch._dynamo.graph_break()
