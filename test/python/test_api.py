"""Methods, clusters and errors of the Python API, as far as they need no plan."""

from __future__ import annotations

import importlib
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
    ModuleSyntaxError,
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
    assert text.startswith(
        "alpa-import{pin-shardings=true keep-placements=true},alpa-unroll-layers,alpa-undo-sorts,"
        "alpa-split-batch{micro-batches=2},"
    )
    for name in ("auto", "manual"):
        ignoring = ShardParallel(method=name, sharding_constraints="ignore", offload="none")
        assert ignoring.import_passes(CLUSTER).split(",")[0] == "alpa-import"
    by_hand = ShardParallel(method="manual", offload="none").import_passes(CLUSTER)
    assert by_hand.split(",")[0] == "alpa-import{keep-shardings=true}"
    assert "alpa-split-batch" not in ShardParallel().passes(CLUSTER, "c.yaml", 1)
    offloading = ShardParallel(offload="all").passes(CLUSTER, "c.yaml", 1).split(",")
    assert "alpa-offload-state" in offloading
    assert offloading[-1] == "alpa-copy-host-state"
    assert any("offload=activations" in word for word in offloading)
    relaxed = ShardParallel(micro_batch_semantics="relaxed", widen_sums=False)
    split = relaxed.layer_passes(4).split(",")[0]
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


TWO_ROWS = """
func.func @main(%x: tensor<2xf32> {alpa.kind = "batch"}) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
"""
COMPLEX = "func.func @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> "
COMPLEX += "{ return %x : tensor<2xcomplex<f32>> }"
SHARD = "alpa-solve-sharding{cluster=cpu-test memory-limit=1}"
ADD = """
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %x : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""
PROBLEM = '{"problem": {"nodes": {"intervals": [[0, 1]], "costs": [[1]], "usages": [[1]]}, '
PROBLEM += '"edges": {"nodes": [], "costs": []}}}'
LIMITS = {
    "time_limit_seconds": 1,
    "spent_seconds": 0,
    "gap": 0,
    "threads": 1,
    "seed": 0,
    "library": "",
}

# What makes the compiler fail with each of its codes.
CAUSES = {
    "cluster-file": lambda: compiler.check_cluster("no-such-cluster"),
    "infeasible": lambda: compiler.Module(ADD).run(SHARD),
    "method": lambda: compiler.Module(ADD).run("no-such-pass"),
    "micro-batches": lambda: compiler.Module(TWO_ROWS).run("alpa-split-batch{micro-batches=3}"),
    "module-syntax": lambda: compiler.Module("module {"),
    "pass": lambda: compiler.Module("module {}").run("alpa-import"),
    "precision": lambda: compiler.Module(COMPLEX).run("alpa-lower-precision{dtype=bfloat16}"),
    "problem-format": lambda: compiler.Problem("{"),
    "solver": lambda: compiler.Problem(PROBLEM).solve("no-such-solver", **LIMITS),
    "unsupported-op": lambda: compiler.Module('"x.y"() : () -> ()'),
}


def test_codes_of_the_compiler_have_classes():
    native = importlib.import_module("alpa_mlir._native")
    assert sorted(errors.ERROR_CLASSES) == sorted(native.ERROR_CODES) == sorted(CAUSES)
    for code, kind in errors.ERROR_CLASSES.items():
        assert kind.code == code


@pytest.mark.parametrize("code", CAUSES)
def test_errors_of_the_compiler_carry_their_code(code):
    with pytest.raises(AlpaError) as caught:
        CAUSES[code]()
    assert type(caught.value) is errors.ERROR_CLASSES[code]
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_codes_survive_the_search():
    """Through threads, and with other text in front."""
    placed = '{alpa.layer = 0 : i64, alpa.phase = "forward"}'
    layered = ADD.replace("%x, %x", f"%x, %x {placed}")
    no_rule = layered.replace(
        "return", f"%1 = stablehlo.partition_id {placed} : tensor<ui32>\n  return"
    )
    for text, options, kind, message in (
        (no_rule, "cpu-test", UnsupportedOpError, "has no sharding rule yet"),
        (layered, "cpu-test method=x", MethodError, "alpa-search-stages: unknown method 'x'"),
        (layered, "none", ClusterFileError, "no such preset"),
    ):
        with pytest.raises(kind, match=message):
            compiler.Module(text).run(f"alpa-search-stages{{cluster={options}}}")


def test_what_to_do_is_a_part_of_its_own():
    big = ADD.replace("8xf32", "68719476736xf32")
    search = "alpa-search-stages{cluster=cpu-test}"
    with pytest.raises(InfeasiblePlanError) as caught:
        compiler.Module(big).run(f"alpa-import,alpa-cluster-layers,{search}")
    assert caught.value.fix.startswith("use more devices")
    assert "use more devices" not in caught.value.what


def test_the_note_is_kept():
    text = "module {\n  func.func private @f()\n  func.func private @f()\n}"
    with pytest.raises(ModuleSyntaxError) as caught:
        compiler.Module(text, "m.mlir")
    assert str(caught.value) == (
        "m.mlir:3:3: redefinition of symbol named 'f' (note: see existing symbol definition here)"
    )


@pytest.mark.parametrize(
    "text", ['module { "foo.bar"() : () -> () }', "module {\n  foo.bar\n}", 'module { "foo.bar" }']
)
def test_unknown_ops_are_named(text):
    with pytest.raises(AlpaError, match=r"bad\.mlir:\d") as caught:
        compiler.Module(text, "bad.mlir")
    if "()" in text or "\n" in text:
        assert isinstance(caught.value, UnsupportedOpError)
        assert caught.value.what == "unknown op 'foo.bar'"


def test_ops_of_stablehlo_that_are_not_supported_say_why():
    text = "func.func @f(%a: tensor<4xf32>) {{ %0 = {} : (tensor<4xf32>) -> tensor<4xi8> return }}"
    for op in ("stablehlo.uniform_quantize %a", '"stablehlo.uniform_quantize"(%a)'):
        with pytest.raises(UnsupportedOpError) as caught:
            compiler.Module(text.format(op), "bad.mlir")
        assert caught.value.what.startswith("stablehlo.uniform_quantize makes or reads quantized")
        assert caught.value.fix.startswith("write the program in integers and scales")
    with pytest.raises(UnsupportedOpError, match=r"quantized type !quant.uniform<i8:f32, 0.5>"):
        compiler.Module("func.func private @f(tensor<4x!quant.uniform<i8:f32, 0.5>>)", "bad.mlir")


def test_unknown_ops_that_know_their_place_are_named():
    text = '"stablehlo.foo"() : () -> () loc("step.py":1:3)'
    with pytest.raises(UnsupportedOpError, match=r"^step\.py:1:3: .*'stablehlo\.foo'"):
        compiler.Module(text, "bad.mlir")


def test_modules_that_are_nested_too_deep():
    with pytest.raises(ModuleSyntaxError, match="nested more than 1000 deep") as caught:
        compiler.Module("(" * 2000, "deep.mlir")
    assert caught.value.where == "deep.mlir:1:1001"


def test_other_errors_within_ops_are_errors_of_syntax():
    """MLIR begins them like those of unknown ops."""
    with pytest.raises(ModuleSyntaxError, match=r"custom op 'func\.func' expected"):
        compiler.Module("func.func main()", "bad.mlir")


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
        ("", "found nothing, expected fields name, device_types, hosts, racks, links and profile"),
    ],
)
def test_bad_clusters(text, message):
    with pytest.raises(ClusterFileError, match=message):
        alpa_mlir.Cluster.from_yaml(text, "c.yaml")


def test_all_errors_of_a_cluster_are_said():
    text = """
device_types:
  a: {memory_bytes: 80 apples, memory_bandwidth: 2TB/s, peak_flops: {float32: 1, bf16: 3}, speed: 3}
hosts:
  - {count: 0, devices: 8, device_type: a}
  - {devices: 8, device_type: b}
links:
  intra_host: {bandwidth: 300GB/s, latency: fast, nccl: {ll: 1s}}
"""
    with pytest.raises(ClusterFileError) as raised:
        alpa_mlir.Cluster.from_yaml(text, "c.yaml")
    fields = re.findall(r"^c.yaml:(\d+): field '([^']*)'", str(raised.value), re.MULTILINE)
    assert sorted((int(line), field) for line, field in fields) == [
        (3, "device_types.a.memory_bytes"),
        (3, "device_types.a.peak_flops.bf16"),
        (3, "device_types.a.speed"),
        (5, "hosts[0].count"),
        (6, "hosts[1].device_type"),
        (7, "links.inter_host"),
        (8, "links.intra_host.latency"),
    ]


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
