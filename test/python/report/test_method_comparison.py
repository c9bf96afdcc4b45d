"""Ways that people take by hand have what these have, and no more."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import AutoParallel
from alpa_mlir.report.method_comparison import BASELINES, alternatives

MIB = 1 << 20


def cluster(memory):
    return alpa_mlir.Cluster.from_dict(
        {
            "name": "small",
            "device_types": {
                "gpu": {
                    "memory_bytes": memory,
                    "memory_bandwidth": 9e11,
                    "peak_flops": {"float32": 1.5e13},
                }
            },
            "hosts": {
                "count": 2,
                "devices": 2,
                "device_type": "gpu",
                "host_memory": {"bytes": 1 << 36, "bandwidth": 2e10, "latency": 1e-5},
            },
            "links": {
                "intra_host": {"bandwidth": 1.5e11, "latency": 3e-6},
                "inter_host": {"bandwidth": 3e8, "latency": 2e-5},
            },
        }
    )


def step(weights, batch):
    def loss(weights):
        x = batch
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def compared(memory, **options):
    weights = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 4
    batch = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    options = {"cluster": cluster(memory), "cache": False, **options}
    traced = alpa_mlir.parallelize(step, **options).trace(weights, batch)
    return {other.name: other for other in alternatives(traced, parts=False)}


def test_baselines_have_their_own_schedules_and_no_offload():
    found = compared(256 * MIB)
    assert list(found) == list(BASELINES)
    for other in found.values():
        assert other.plan is not None, other.reason
        assert not any(stage.predicted.get("host_bytes") for stage in other.plan.stages)
    megatron = found["Megatron-LM, best grid"].plan
    assert len(megatron.meshes) > 1
    assert megatron.schedule in ("1f1b", "interleaved-1f1b")
    assert len(found["FSDP"].plan.stages) == len(found["data parallel"].plan.stages) == 1


@pytest.mark.parametrize("offload", ["auto", "optimizer"])
def test_state_that_fills_a_device_is_not_searched(offload):
    """16 MiB of weights: with 16 MiB of memory less the part that is left free."""
    method = AutoParallel(offload=offload)
    found = compared(17 * MIB, method=method)["data parallel"]
    if offload == "auto":
        assert (found.plan, found.fits) == (None, False)
        assert found.reason == ("each device holds all 16 MiB of the state, 15.3 MiB are available")
    else:
        assert "of the state, " not in found.reason
