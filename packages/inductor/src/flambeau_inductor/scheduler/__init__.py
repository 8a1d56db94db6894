"""Which loop nests share a kernel, in what order they run, and which memory they run in."""
