"""The models that benchmarks run, made from the test zoo at larger sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

import jax
import zoo

_jax: Any = jax


@dataclass(frozen=True)
class BenchmarkModel:
    """A training step with example arguments that hold no memory.

    Attributes:
        name: for tables.
        step: `(state, batch) -> (state, metrics)`.
        state: shapes and dtypes of the state.
        batch: shapes and dtypes of the batch at full size.
        parameters: number of trained numbers.
        init: makes the arrays of state and batch when a benchmark runs the step.
    """

    name: str
    step: Callable[..., Any]
    state: Any
    batch: Any
    parameters: int
    init: Callable[[], tuple[Any, Any]]


def gpt(
    layers: int,
    hidden: int = 256,
    heads: int = 8,
    vocab: int = 1024,
    seq: int = 128,
    batch_size: int = 16,
    remat: bool = False,
) -> BenchmarkModel:
    """A GPT with AdamW; unrolled, since a scan cannot be cut into stages.

    Example:
        >>> model = gpt(4)
        >>> traced = trace(model.step, model.state, model.batch, num_micro_batches=4)
    """
    config = zoo.GPTConfig(
        layers=layers, hidden=hidden, heads=heads, vocab=vocab, seq=seq, remat=remat
    )
    model = zoo.make_gpt(config, f"gpt {layers} layers")

    def init() -> tuple[Any, Any]:
        return model.init(batch_size)

    state, batch = _jax.eval_shape(init)
    parameters = sum(leaf.size for leaf in _jax.tree.leaves(state.params))
    return BenchmarkModel(model.name, model.step, state, batch, parameters, init)
