"""Programs that one process compiles and stores, and the next one finds edited."""
