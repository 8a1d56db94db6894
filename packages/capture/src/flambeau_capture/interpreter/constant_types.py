"""Types whose objects a capture takes as they are: guarded by value, or by identity."""

from __future__ import annotations

import functools
import re
import types

import torch

NoneType = type(None)

SCALARS = frozenset(
    {int, float, complex, str, bytes, bool, NoneType, type(...), type(NotImplemented)}
)
"""Immutable types whose values are guarded by value."""

TORCH_CONSTANTS = frozenset(
    {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo}
)

LRU_CACHE = type(functools.lru_cache(lambda: 0))
IDENTITY_TYPES = frozenset(
    {
        types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType,
        types.CodeType, property, classmethod, staticmethod, LRU_CACHE, re.Pattern,
        torch._ops.OpOverload, torch._ops.OpOverloadPacket, types.GenericAlias, type(types.SimpleNamespace.__init__),
    }
)  # fmt: skip
"""Types whose objects are guarded by identity and used as they are."""
