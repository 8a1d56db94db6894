"""Captured graphs: the GraphModule, its symbolic sizes, and the functions that its nodes call.

Uses sources, records and flambeau_prims.
"""
