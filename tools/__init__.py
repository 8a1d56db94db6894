"""Contributors' commands: `python -m tools.checks`, `python -m tools.bench`."""
