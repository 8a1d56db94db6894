"""Paired timings against torch.compile and eager: `python -m tools.bench`."""
