"""Time and size of tracing GPT models; prints one row per model.

Run: python benchmark/trace_gpt.py [layers ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from alpa_mlir.trace.tracing import trace
from models import gpt

_jax: Any = jax


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table for the wanted numbers of layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=[4, 12, 24])
    print(f"{'model':<14}{'parameters':>12}{'jax lower s':>13}{'trace s':>9}{'MB':>7}{'tags':>7}")
    for layers in parser.parse_args(arguments).layers:
        model = gpt(layers)
        args = (model.state, model.batch)
        plain, _ = _seconds(lambda: _jax.jit(model.step).lower(*args))  # noqa: B023
        ours, traced = _seconds(lambda: trace(model.step, *args))  # noqa: B023
        print(
            f"{model.name:<14}{model.parameters:>12,}{plain:>13.2f}{ours:>9.2f}"
            f"{len(traced.text) / 1e6:>7.2f}{traced.tagged_equations:>7}"
        )


if __name__ == "__main__":
    main()
