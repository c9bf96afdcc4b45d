"""Steps on plans written by hand, called with trees."""

from __future__ import annotations

from dataclasses import replace

import alpa_mlir
import handmade
import jax
import numpy as np
from alpa_runtime import trees
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import CallInfo


def two_stage_plan(micro_batches: int = 2, **options) -> Plan:
    """`(state, batch) -> (state, loss, h)` as `handmade.two_stages` has it."""
    state, batch = handmade.arguments(1)
    arguments, result = (jax.tree.structure(t) for t in ((state, batch), (state, 0, 0)))
    call = CallInfo(trees.encode(arguments), trees.encode(result), (), True, {}, {})
    return replace(handmade.as_plan(*handmade.two_stages(micro_batches, **options)), call=call)


def two_stage_step(micro_batches: int = 2, **options) -> alpa_mlir.ParallelStep:
    return alpa_mlir.load(two_stage_plan(micro_batches, **options))


def check_equals_jit(step, micro_batches=2, count=3):
    """Losses, results and state are those of the step on one device."""
    state, batch = handmade.arguments(micro_batches)
    expected = jax.device_get(state)
    for _ in range(count):
        state, *found = step(state, batch)
        expected, *wanted = jax.jit(handmade.reference_step)(expected, batch)
        for a, b in zip(jax.tree.leaves(jax.device_get(found)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for name, x in expected.items():
        np.testing.assert_allclose(np.asarray(state[name]), x, rtol=1e-5, atol=1e-6)
