"""Random stacks of equal layers in training: `python -m tools.fuzz layers`."""
