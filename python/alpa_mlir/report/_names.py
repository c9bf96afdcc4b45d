"""Names of ops for people: the path of modules in the model, without what tracing adds."""

from __future__ import annotations

import re

_SCOPES = re.compile(r"alpa_\w+|checkpoint|rematted_computation|while|body|cond|closed_call")
_TRANSFORMED = re.compile(r"(?:transpose\()?(?:jvp|vmap)\(.*\)\)?")
_CALLED = re.compile(r"jit\((.*)\)")
_DIGITS = re.compile(r"\d+")


def op_path(where: str) -> str:
    """JAX's name without the scopes of transformations, and of what is computed again.

    Example:
        >>> op_path("jit(step)/transpose(jvp(alpa_eqn_3))/GPT/block_0/up/dot_general")
        'GPT/block_0/up/dot_general'
        >>> op_path("jit(step)/jvp(alpa_eqn_3)/jit(_block)/dot_general")
        '_block/dot_general'
    """
    if "/" not in where:
        return where
    parts: list[str] = []
    for number, part in enumerate(where.split("/")):
        if _TRANSFORMED.fullmatch(part):
            parts.clear()  # What is computed again stands behind its own path.
        elif not part or _SCOPES.fullmatch(part):
            continue
        elif called := _CALLED.fullmatch(part):
            parts += [called[1]] if number else []
        else:
            parts.append(part)
    return "/".join(parts) or where


def alike(name: str) -> str:
    """A name without its numbers: that of all layers.

    Example:
        >>> alike("state['layers'][12]['qkv']")
        "state['layers'][*]['qkv']"
    """
    return _DIGITS.sub("*", name)
