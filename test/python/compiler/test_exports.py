"""Both exports of a plan give the step of a single device."""

from __future__ import annotations

import json
import math

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import Cluster, MethodError, PipeshardParallel, ShardParallel
from clusters import round_figures, slow_links
from conditioned import check_state


def _check(name: str, cluster: Cluster, method: alpa_mlir.Method) -> alpa_mlir.ParallelFunction:
    model = zoo.get(name)
    state, batch = model.init()
    expected = jax.jit(model.step)(state, batch)
    step = alpa_mlir.parallelize(model.step, cluster=cluster, method=method, donate_state=False)
    found = step(state, batch)
    check_state(state, found[0], expected[0], rtol=1e-5, atol=2e-6)
    check_state(None, found[1], expected[1], rtol=1e-4)
    return step


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("name", "mesh_shape"),
    [
        ("mlp", (1, 4)),
        ("mlp", (2, 4)),
        ("mlp", (2, 2, 2)),
        ("gpt", (2, 2)),
        ("gpt_scan", (1, 4)),  # loops, with collectives in their bodies
        ("moe", (2, 2)),
        ("vit", (1, 4)),
        ("wide_resnet", (2, 2)),
        ("while_cond", (2, 2)),
        ("random_bits", (1, 4)),
        ("cumsum", (2, 2)),
        ("fft", (1, 4)),
        ("kv_cache", (2, 2)),
    ],
)
def test_collectives_equal_single_device(name: str, mesh_shape: tuple[int, ...]) -> None:
    devices = math.prod(mesh_shape)
    _check(name, round_figures(devices), ShardParallel(mesh_shape=mesh_shape, export="collectives"))


def test_collectives_beside_products() -> None:
    """Megatron's gathers and scatters go round in pieces, in both directions of training."""
    fields = json.loads(slow_links(4).text)
    fields["device_types"]["virtual"] |= {"overlap_slowdown": 0.1, "collective_matmul": True}
    fields["device_types"]["virtual"]["peak_flops"] = {"float32": 1e9}  # Products hide much.
    cluster = Cluster.from_dict(fields)
    method = ShardParallel(mesh_shape=(1, 4), method="megatron-sequence", export="collectives")
    step = _check("gpt", cluster, method)
    plan = step.plan(*jax.eval_shape(zoo.get("gpt").init)).plan
    (text,) = plan.modules.values()
    for part in text.split("func.func @backward"):
        assert part.count("optimization_barrier") > 6
    with pytest.raises(MethodError, match=r"`collective_matmul`.*export 'shardy'"):
        _check("gpt", cluster, ShardParallel(mesh_shape=(1, 4)))


@pytest.mark.slow
def test_collectives_in_a_pipeline() -> None:
    """Several stages, micro-batches and functions; sums and transfers between them."""
    method = PipeshardParallel(
        submeshes=[(1, 2), (1, 2)],
        mesh_shapes=[(1, 2), (2, 1)],
        num_micro_batches=2,
        export="collectives",
    )
    _check("gpt", round_figures(4), method)


def test_three_axes_with_shardy() -> None:
    _check("mlp", round_figures(8), ShardParallel(mesh_shape=(2, 2, 2)))


@pytest.mark.parametrize("shift", [lambda v: jnp.roll(v, 1, 0), lambda v: v[:-1], jnp.diff])
def test_shifted_beside_another_reader(shift) -> None:
    """The partitioner is told of every value that anything but elementwise ops read."""

    def step(params, batch):
        v = jnp.tanh(batch["x"])
        return params, (shift(v), v @ v.T)

    params, batch = jnp.ones(3), {"x": jax.random.normal(jax.random.key(0), (64, 16))}
    cluster = Cluster.nominal("two", "cpu", (2,), 1 << 30)
    method = ShardParallel(mesh_shape=(1, 2))
    found = alpa_mlir.parallelize(step, cluster=cluster, method=method)(params, batch)[1]
    for value, wanted in zip(found, jax.jit(step)(params, batch)[1], strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_unknown_export() -> None:
    with pytest.raises(MethodError, match="export 'iree'"):
        ShardParallel(export="iree")
