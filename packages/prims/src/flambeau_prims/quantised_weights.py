"""Which products dequantise their weights as they multiply: few rows, many weights.

    y = x @ (q.to(float) * scale)     x: up to 16 rows on a CPU, 64 on a GPU; q: integers

Autograd's freezing leaves such weights as they are, and the inductor writes such products.
"""

from __future__ import annotations

MOST_ROWS = {"cpu": 16, "cuda": 64}
"""By the type of the device. With more rows, each block of them would dequantise again."""

FEWEST_WEIGHTS = 1 << 18
"""Smaller factors stay in the caches, and are no work."""
