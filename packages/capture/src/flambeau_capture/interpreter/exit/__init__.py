"""What happens when a frame ends or is suspended: side effects, and recipes of what leaves it.

May use semantics, generators, the run loop and machine, and what these use; not branches.
"""
