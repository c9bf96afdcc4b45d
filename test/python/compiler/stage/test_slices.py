"""Sliced, scheduled and exported steps give the single-device numbers for any decisions."""

from __future__ import annotations

import annotated
import jax
import numpy as np
import pytest
from alpa_runtime.execution.loaded_plan import load

# Mesh of each stage, stage of each layer, micro-batches, schedule.
CASES = [
    ([(1,)], [0, 0, 0, 0], 1, "1f1b"),
    ([(2, 2)], [0, 0, 0, 0], 2, "gpipe"),
    ([(1,), (1,)], [0, 0, 1, 1], 4, "gpipe"),
    ([(2,), (2,)], [0, 0, 1, 1], 2, "1f1b"),
    ([(1, 2), (2, 2)], [0, 1, 1, 1], 4, "1f1b"),
    ([(1,), (1,), (1,), (1,)], [0, 1, 2, 3], 3, "1f1b"),
    ([(1,), (1, 2), (2, 2)], [0, 1, 1, 2], 1, "gpipe"),
]


@pytest.mark.sample(4)
@pytest.mark.skipif(not annotated.OPT.exists(), reason="alpa-opt is not built")
@pytest.mark.parametrize(("meshes", "stages", "micro_batches", "schedule"), CASES)
def test_equals_single_device(meshes, stages, micro_batches, schedule, tmp_path):
    text = annotated.annotate(meshes, stages, micro_batches, seed=len(meshes) + micro_batches)
    plan = annotated.compile_plan(text, tmp_path, schedule)
    assert [stage.mesh for stage in plan.stages] == list(range(len(meshes)))
    step = load(plan)
    rng = np.random.default_rng(1)
    expected = annotated.init_state()
    leaves, tree = jax.tree.flatten(expected)
    for _ in range(2):
        shape = (annotated.ROWS * micro_batches, annotated.WIDTH)
        x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        results = step([*leaves, x, y])
        expected, metrics = annotated.train_step(len(x), expected, x, y)
        leaves = results[: len(leaves)]
        found = jax.tree.unflatten(tree, leaves)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), found, expected
        )
        for name, value in zip(sorted(metrics), results[len(leaves) :], strict=True):
            np.testing.assert_allclose(value, metrics[name], rtol=2e-4, atol=1e-5, err_msg=name)


@pytest.mark.skipif(not annotated.OPT.exists(), reason="alpa-opt is not built")
def test_global_norm_of_one_stage(tmp_path):
    """The last stage alone uses the norm: what others know of it goes there."""
    plan = annotated.compile_plan(
        annotated.annotate([(1,), (1,)], [0, 0, 1, 1], 2, 0), tmp_path, "1f1b"
    )
    functions = [set(stage.functions) for stage in plan.stages]
    assert {"forward", "backward", "update_0"} <= functions[0] & functions[1]
    assert {"update_1", "update_2"} & (functions[0] | functions[1])
