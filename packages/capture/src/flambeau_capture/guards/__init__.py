"""Guards: what must hold of a call for an entry made on another call to serve it.

kind.py           what a guard kind is, and the table of them
kinds.py          every kind of guard: what it means, how it is checked in Python, printed and
                  explained
tensor_kinds.py   those of tensors, arrays, sizes and memory
constants.py      constants compared exactly, values told briefly
program.py        a list of guards as a flat program for the C core
check.py          the reference check in Python, and the program's twin where there is no C core
filtering.py      guards shown to the user's filter, and left out where it says so
relations.py      conditions on symbolic sizes
torch_state.py    states of torch that a capture may depend on
tensor_layout.py  finds where libtorch keeps a tensor's fields
"""
