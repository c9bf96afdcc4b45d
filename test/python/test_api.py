"""Methods, clusters and errors of the Python API, as far as they need no plan."""

from __future__ import annotations

import alpa_mlir
import pytest
from alpa_mlir import compiler
from alpa_mlir.errors import (
    InfeasiblePlanError,
    MethodError,
    PassError,
    UnsupportedOpError,
)
from alpa_mlir.search import AutoParallel, PipeshardParallel, ShardParallel


class FakeCluster:
    devices_per_host = (4, 4)


def options(method):
    return method.stage_options(FakeCluster())


def test_public_names():
    assert sorted(alpa_mlir.__all__) == alpa_mlir.__all__
    for name in alpa_mlir.__all__:
        assert getattr(alpa_mlir, name).__doc__, name


def test_methods_become_pass_options():
    assert options(AutoParallel()) == {}
    assert options(ShardParallel()) == {"submeshes": "2x4"}
    assert options(ShardParallel(mesh_shape=(2, 2))) == {
        "submeshes": "1x4",
        "mesh-shapes": "2x2",
    }
    assert options(ShardParallel(mesh_shape=(8, 1))) == {
        "submeshes": "2x4",
        "mesh-shapes": "8x1",
    }
    manual = PipeshardParallel(
        submeshes=[(1, 1), (1, 2)], mesh_shapes=[(1, 1), (2, 1)], layer_ranges=[(0, 1), (1, 4)]
    )
    assert options(manual) == {
        "submeshes": "1x1,1x2",
        "mesh-shapes": "1x1,2x1",
        "layer-ranges": "0-1,1-4",
    }
    text = ShardParallel(num_micro_batches=2).pipeline(FakeCluster(), "c.yaml", 2, "sum")
    assert "alpa-search-stages{cluster=c.yaml num-micro-batches=2 schedule=1f1b" in text
    assert "alpa-slice-stages{gradients=sum}" in text


def test_automatic_counts_divide_the_batch():
    assert AutoParallel().micro_batch_counts(12) == (1, 2, 4)
    assert AutoParallel(num_micro_batches=(3, 5)).micro_batch_counts(12) == (3,)
    assert AutoParallel(num_micro_batches=5).micro_batch_counts(12) == (5,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoParallel(schedule="zigzag"), "schedule 'zigzag'; fix: use one of 1f1b, gpip"),
        (lambda: AutoParallel(num_micro_batches=0), "0 micro-batches; fix"),
        (lambda: AutoParallel(num_micro_batches=(2, -1)), "-1 micro-batches; fix"),
        (lambda: ShardParallel(num_micro_batches=(1, 2)), "ShardParallel: num_micro_batches is"),
        (lambda: PipeshardParallel(), "no submeshes"),
        (
            lambda: PipeshardParallel(submeshes=[(1, 1)], layer_ranges=[(0, 1), (1, 2)]),
            "2 layer_ranges for 1 submeshes",
        ),
        (lambda: AutoParallel(memory_fraction=1.5), "memory_fraction 1.5"),
        (lambda: options(ShardParallel(mesh_shape=(3, 2))), "takes 6 devices of hosts with"),
        (
            lambda: AutoParallel(num_micro_batches=(5, 7)).micro_batch_counts(8),
            "none of .* divides a batch of 8",
        ),
    ],
)
def test_bad_methods(make, message):
    with pytest.raises(MethodError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("m:3:5: error: 'a.b' op has no sharding rule yet", UnsupportedOpError),
        ("m:3:5: error: alpa-search-stages: no plan fits into memory: ..", InfeasiblePlanError),
        ("m:3:5: error: alpa-search-stages: submesh '9x9' ..", MethodError),
        ("m:1:1: error: something else\nm:2:2: note: seen here", PassError),
    ],
)
def test_diagnostics_become_named_errors(text, kind):
    error = compiler.named_error(text, PassError)
    assert type(error) is kind
    assert error.where.startswith("m:")
    assert "\n" not in str(error)


def test_the_note_is_kept():
    error = compiler.named_error("m:1:1: error: bad\nm:2:2: note: seen here", PassError)
    assert str(error) == "m:1:1: bad (note: seen here)"
