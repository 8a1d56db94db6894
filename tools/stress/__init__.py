"""Processes that are killed while they compile, and many threads that compile and call at once."""
