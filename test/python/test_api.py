"""Methods, clusters and errors of the Python API, as far as they need no plan."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, Cluster, PipeshardParallel, ShardParallel, compiler, errors
from alpa_mlir.errors import (
    AlpaError,
    ArgumentMismatchError,
    ClusterFileError,
    InfeasiblePlanError,
    MethodError,
    MicroBatchError,
    PassError,
    UnsupportedOpError,
)

CLUSTER = Cluster.load("cpu-test")  # 2 hosts of 4 devices


def options(method):
    return method.stage_options(CLUSTER)


def test_public_names():
    assert sorted(alpa_mlir.__all__) == alpa_mlir.__all__
    for name in alpa_mlir.__all__:
        assert getattr(alpa_mlir, name).__doc__, name


def test_every_error_has_a_code_of_its_own():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind: vars(kind)["code"] for kind in kinds if issubclass(kind, AlpaError)}
    assert len(set(codes.values())) == len(codes)
    for code in codes.values():
        assert re.fullmatch("[a-z]+(-[a-z]+)*", code)


def test_methods_become_pass_options():
    assert options(AutoParallel()) == {"pipeline": "auto"}
    assert options(AutoParallel(pipeline="equal-mesh")) == {"pipeline": "equal-mesh"}
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
    typed = PipeshardParallel(submeshes=[(1, 1, "a100"), (1, 2)])
    assert options(typed) == {"submeshes": "1x1@a100,1x2"}
    text = ShardParallel(num_micro_batches=2).passes(CLUSTER, "c.yaml", 2)
    assert "alpa-search-stages{cluster=c.yaml num-micro-batches=2 schedule=1f1b" in text
    assert text.startswith("alpa-import,alpa-split-batch{micro-batches=2},")
    assert "alpa-split-batch" not in ShardParallel().passes(CLUSTER, "c.yaml", 1)
    relaxed = ShardParallel(micro_batch_semantics="relaxed", widen_sums=False)
    split = relaxed.layer_passes(CLUSTER, 4).split(",")[0]
    assert split == "alpa-split-batch{micro-batches=4 semantics=relaxed widen-sums=false}"


def test_automatic_counts_divide_the_batch():
    assert AutoParallel().micro_batch_counts(12) == (1, 2, 3, 4, 6, 12)
    assert AutoParallel(num_micro_batches=(3, 5)).micro_batch_counts(12) == (3,)
    assert AutoParallel(num_micro_batches=5).micro_batch_counts(12) == (5,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoParallel(schedule="zigzag"), "schedule 'zigzag'; fix: use one of auto, 1f1b"),
        (
            lambda: AutoParallel(pipeline="equal"),
            "unknown pipeline 'equal'; fix: use one of auto, intra-only, inter-only, equal-layer,",
        ),
        (lambda: AutoParallel(num_micro_batches=0), "0 micro-batches; fix"),
        (lambda: AutoParallel(num_micro_batches=(2, -1)), "-1 micro-batches; fix"),
        (lambda: ShardParallel(num_micro_batches=(1, 2)), "ShardParallel: num_micro_batches is"),
        (lambda: PipeshardParallel(mesh_shapes=[(1, 2)]), "no submeshes"),
        (
            lambda: PipeshardParallel(submeshes=[(1, 1)], layer_ranges=[(0, 1), (1, 2)]),
            "2 layer_ranges for 1 submeshes",
        ),
        (lambda: AutoParallel(memory_fraction=1.5), "memory_fraction 1.5"),
        (lambda: AutoParallel(memory_fraction="half"), "memory_fraction 'half'"),
        (lambda: AutoParallel(time_limit_seconds=float("nan")), "time_limit_seconds nan"),
        (lambda: AutoParallel(num_micro_batches=1.5), "1.5 micro-batches"),
        (lambda: AutoParallel(num_micro_batches="4"), "'4' micro-batches"),
        (lambda: AutoParallel(num_micro_batches=(2, "x")), "'x' micro-batches"),
        (lambda: AutoParallel(layers=1.5), "layers 1.5; fix: use a whole number of at least 0"),
        (lambda: AutoParallel(layers=-1), "layers -1"),
        (lambda: AutoParallel(max_layers=0), "max_layers 0; fix: use a whole number of at least 1"),
        (lambda: AutoParallel(remat=None), "remat None"),
        (
            lambda: AutoParallel(micro_batch_semantics="mean"),
            "micro_batch_semantics 'mean'; fix: use one of exact, relaxed, independent",
        ),
        (lambda: AutoParallel(remat=3), "remat 3; fix: use one of none, all, auto, or numbers"),
        (lambda: AutoParallel(remat=("all",)), "remat"),
        (
            lambda: ShardParallel(mesh_shape=(-1, 2)),
            r"mesh_shape \(-1, 2\); fix: give one to three",
        ),
        (lambda: ShardParallel(mesh_shape=()), r"mesh_shape \(\)"),
        (lambda: ShardParallel(mesh_shape=(2, 2, 2, 1)), "mesh_shape"),
        (
            lambda: PipeshardParallel(submeshes=[(1, 4)], mesh_shapes=[(3, 1)]),
            r"mesh shape \(3, 1\) for submesh \(1, 4\)",
        ),
        (
            lambda: PipeshardParallel(submeshes=[(1, 1)], layer_ranges=[(-1, 2)]),
            r"layer range \(-1, 2\)",
        ),
        (lambda: PipeshardParallel(submeshes=[(1, 1)], layer_ranges=[(0,)]), "layer range"),
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


@pytest.mark.parametrize(
    "text", ['module { "foo.bar"() : () -> () }', "module {\n  foo.bar\n}", 'module { "foo.bar" }']
)
def test_unknown_ops_are_named(text):
    with pytest.raises(AlpaError, match=r"bad\.mlir:\d") as caught:
        compiler.Module(text, "bad.mlir")
    if "()" in text or "\n" in text:
        assert isinstance(caught.value, UnsupportedOpError)
        assert "'foo.bar'" in str(caught.value)


def test_clusters():
    cluster = alpa_mlir.Cluster.load("cpu-test")
    assert cluster.devices_per_host == (4, 4)
    assert cluster.num_devices == 8
    assert alpa_mlir.Cluster.from_yaml(cluster.as_text()) == cluster
    live = alpa_mlir.Cluster.live()
    assert live.num_devices == len(jax.devices())
    for name in alpa_mlir.cluster_presets():
        assert alpa_mlir.Cluster.load(name).num_devices >= 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: 3", "field 'device_types': found nothing"),
        ("a: [", "c.yaml:1"),
        ("", "found nothing, expected fields name, device_types, hosts, links and profile"),
    ],
)
def test_bad_clusters(text, message):
    with pytest.raises(ClusterFileError, match=message):
        alpa_mlir.Cluster.from_yaml(text, "c.yaml")


def test_negative_fields_of_clusters():
    text = alpa_mlir.Cluster.load("cpu-test").as_text()
    with pytest.raises(ClusterFileError, match=r"c.yaml:\d+: field .*memory_bytes.*-5"):
        alpa_mlir.Cluster.from_yaml(text.replace("2147483648", "-5"), "c.yaml")


def test_the_batch_must_divide():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(x @ w))(w)

    w, x = np.ones((4, 2), np.float32), np.ones((6, 4), np.float32)
    with pytest.raises(MicroBatchError, match=r"6.*4"):
        alpa_mlir.compile(step, w, x, cluster="cpu-test", method=AutoParallel(num_micro_batches=4))


def test_tracing_by_itself():
    @alpa_mlir.parallelize(method=ShardParallel(num_micro_batches=2))
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(x @ w))(w)

    w, x = np.ones((4, 2), np.float32), np.ones((6, 4), np.float32)
    traced = step.trace(w, x)
    assert "tensor<6x4xf32>" in traced.as_text()
    assert traced.traced.signature.batch_size == 6
    assert traced.traced.signature.inputs[1].kind == "batch"
    assert step.__name__ == "step"
    with pytest.raises(ArgumentMismatchError, match=r"x.*float32\[6, ?4\]"):
        traced.traced.flatten_args(w, x[:3])
