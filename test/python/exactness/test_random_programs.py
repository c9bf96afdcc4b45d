"""Random steps give the results of `jax.jit`, for two and for four micro-batches."""

from __future__ import annotations

import alpa_mlir
import pytest
from alpa_mlir import ShardParallel
from hypothesis import HealthCheck, Phase, assume, given, settings

from exactness.harness import check, differences, is_finite, run_in_64_bits
from exactness.programs import programs

ONE = alpa_mlir.Cluster.nominal("one", "cpu", (1,), 1 << 30)
# Programs whose own rounding comes near to the bound say nothing.
SHARE = 0.3


def check_program(program, counts):
    style = program.style()
    assert is_finite(style.expected)
    for count in counts:
        try:
            check(style, ONE, ShardParallel(num_micro_batches=count), count, False)
        except AssertionError:
            wide = run_in_64_bits(style)
            assume(not differences(style, wide, style.expected, types=False, share=SHARE))
            raise


def options(count):
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@options(40)
@given(programs())
def test_some(program):
    check_program(program, (2, 4))


@pytest.mark.slow
@options(2000)
@given(programs())
def test_many(program):
    check_program(program, (2, 4))


@pytest.mark.slow
@options(200)
@given(programs())
def test_one_micro_batch(program):
    check_program(program, (1,))
