"""Chains of operators over tensors in poisoned memory, compiled and eager, compared."""
