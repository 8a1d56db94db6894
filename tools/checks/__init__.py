"""Everything CI runs: `python -m tools.checks [STAGE ...]`."""
