"""Guards: what must hold of a call for an entry made on another call to serve it.

kinds.py          every kind of guard: what it means, how it is checked in Python, printed and
                  explained
constants.py      constants compared exactly and printed briefly; conditions on symbolic sizes
program.py        a list of guards as a flat program for the C core; the reference check in Python
filtering.py      guards shown to the user's filter, and left out where it says so
tensor_layout.py  finds where libtorch keeps a tensor's fields
"""
