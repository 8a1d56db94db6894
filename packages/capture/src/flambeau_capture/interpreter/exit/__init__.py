"""What happens when a frame ends or is suspended: side effects, recipes of its results, the record of the rest.

Uses values, torch_calls, semantics and branches.
"""
