"""Graph of primitives in, loop nests and extern calls out; one file a family of primitives."""
