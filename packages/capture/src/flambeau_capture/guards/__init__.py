"""Guards: what must hold of a call for an entry made on another call to serve it.

kinds.py          every kind of guard: what it means, how it is checked in Python, printed and explained
program.py        a list of guards as a flat program for the C core
check.py          the reference check in Python, and the program's twin where there is no C core
relations.py      conditions on symbolic sizes
torch_state.py    states of torch that a capture may depend on
tensor_layout.py  finds where libtorch keeps a tensor's fields
"""
