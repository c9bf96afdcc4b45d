"""Results on their way to the host."""

from __future__ import annotations

from typing import Any

from alpa_runtime import trees


def prefetch(tree: Any) -> None:
    """Start to copy arrays to the host, so that reading them does not wait for the copy.

    Args:
        tree: of results of steps, and of anything else, which is left alone.

    Example:
        >>> alpa_mlir.prefetch(loss)       # doctest: +SKIP
        >>> next_step()                    # doctest: +SKIP
        >>> float(loss)                    # doctest: +SKIP
    """
    for leaf in trees.leaves(tree):
        start = getattr(leaf, "copy_to_host_async", None)
        if start is not None:
            start()
