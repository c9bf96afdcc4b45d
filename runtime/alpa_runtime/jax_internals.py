"""The only place that touches private names of JAX.

Everything here has a fallback: where JAX moved a name, the function says so by its result
and the caller goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax

TRIED = "0.10.2 to 0.12"
_ENTRY = "vjp"  # the function that jax.grad and jax.value_and_grad call, in jax._src.api


class _Patch:
    """Replaces an attribute while at least one `with` block of any thread is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._undo: list[Callable[[], None]] = []

    def enter(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        with self._lock:
            if self._depth == 0:
                owner = _grad_module()
                if owner is None:
                    return False
                original = getattr(owner, _ENTRY)
                replacement = wrap(original)
                for target in (owner, jax):
                    if getattr(target, _ENTRY, None) is original:
                        setattr(target, _ENTRY, replacement)
                        self._undo.append(lambda target=target: setattr(target, _ENTRY, original))
            self._depth += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                for undo in self._undo:
                    undo()
                self._undo.clear()


_patch = _Patch()


def _grad_module() -> Any | None:
    """The module whose `vjp` global `jax.value_and_grad` calls, or None if JAX changed."""
    try:
        from jax._src import api
    except ImportError:
        return None
    function: Any = getattr(api, "value_and_grad", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or not callable(getattr(api, _ENTRY, None)):
        return None
    inner = [c for c in code.co_consts if hasattr(c, "co_names")]
    called = {name for c in (code, *inner) for name in c.co_names}
    return api if _ENTRY in called else None


@contextlib.contextmanager
def intercept_grad(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Generator[bool]:
    """Route the calls that `jax.grad` makes to `vjp` through `wrap(vjp)` inside the block.

    The replacement is seen by all threads, so `wrap`'s result must look at state of its own
    thread before it acts. Blocks may nest and overlap; the first one's `wrap` is used.

    Yields:
        True if the calls are intercepted, False if this JAX has no such door.
    """
    if not _patch.enter(wrap):
        yield False
        return
    try:
        yield True
    finally:
        _patch.leave()


def accept_as_array(kind: type, array_of: Callable[[Any], jax.Array]) -> None:
    """Let functions of JAX take objects of a class, with `shape` and `dtype`, as arrays.

    Where JAX has no such door, they take what `array_of` makes of one.
    """
    try:
        from jax._src import core, dtypes

        owner: Any = core
        mappings, abstract = owner.pytype_aval_mappings, owner.shaped_abstractify
        owner = dtypes
        register = owner.register_canonicalize_value_handler
    except (ImportError, AttributeError):
        return

    def aval(x: Any) -> Any:
        return abstract(jax.ShapeDtypeStruct(x.shape, x.dtype))

    mappings[kind] = aval
    register(kind, array_of)


def params_of(eqn: Any) -> dict[str, Any]:
    """The parameters of an equation.

    Those of an op that is an object (`call_hi_primitive`) are the object's: from JAX 0.11 on,
    `jax.checkpoint` is one with `jax_remat3`.
    """
    return getattr(eqn.params.get("_prim"), "params", eqn.params)
