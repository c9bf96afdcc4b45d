"""Every style of step gives the results of `jax.jit`, for any number of micro-batches."""

from __future__ import annotations

import dataclasses

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import ShardParallel

from exactness.harness import check, differences, is_finite, run_in_64_bits
from exactness.styles import MODULES, STYLES, fast_count, rows, slow

ONE = alpa_mlir.Cluster.nominal("one", "cpu", (1,), 1 << 30)


def is_fast(number, style, count):
    """Several micro-batches of each style, and one of each sixth style."""
    return count == fast_count(style) or (count == 1 and number % 6 == 0)


@pytest.mark.sweep(120)
@pytest.mark.parametrize(
    ("name", "count"),
    rows(lambda i, style: [(b, is_fast(i, style, b)) for b in style.counts]),
)
def test_micro_batches(name, count):
    check(STYLES[name], ONE, ShardParallel(num_micro_batches=count), count, False)


def test_the_table():
    assert len(STYLES) >= 80
    for style in STYLES.values():
        assert 1 in style.counts
        assert style.make.__module__ in {module.__name__ for module in MODULES}


@slow
@pytest.mark.parametrize("name", STYLES)
def test_the_reference_is_well_conditioned(name):
    """A change of the batch by one rounding changes no result by more than is allowed."""
    style = STYLES[name]
    assert is_finite(style.expected)
    rng = np.random.default_rng(7)

    def rounded(tree):
        def leaf(x):
            x = np.asarray(x) if isinstance(x, np.ndarray) else x
            if getattr(x, "dtype", None) != np.float32:
                return x
            signs = rng.choice([-1.0, 1.0], np.shape(x))
            return jnp.asarray(np.asarray(x) * (1 + 0.5 * np.finfo(np.float32).eps * signs))

        return jax.tree.map(leaf, tree)

    case = dataclasses.replace(style.case, batch=lambda rng: rounded(style.case.batch(rng)))
    found = case.run(style.jitted())
    assert not differences(style, found, style.expected)
    again = style.case.run(style.jitted())
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(style.expected), strict=True):
        np.testing.assert_array_equal(a, b)


@slow
@pytest.mark.parametrize(
    "name", [n for n, style in STYLES.items() if not style.single and style.tolerance < 1e-4]
)
def test_the_reference_agrees_with_64_bits(name):
    """Single precision is enough to tell a difference of 1e-5 from rounding."""
    style = STYLES[name]
    assert not differences(style, run_in_64_bits(style), style.expected, types=False)
