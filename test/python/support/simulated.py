"""Clusters and models for tests of the simulator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from alpa_mlir import Cluster


def cluster(hosts=1, devices=8, intra=(1e9, 0.0), inter=(1e9, 0.0), nics=1, flops=1e12) -> Cluster:
    def link(bandwidth, latency):
        return {"bandwidth": bandwidth, "latency": latency}

    return Cluster.from_dict(
        {
            "name": "bench",
            "device_types": {
                "d": {
                    "memory_bytes": 10**9,
                    "memory_bandwidth": flops,
                    "peak_flops": {"float32": flops},
                }
            },
            "hosts": {"count": hosts, "devices": devices, "device_type": "d", "nics": nics},
            "links": {"intra_host": link(*intra), "inter_host": link(*inter)},
        }
    )


def mlp(layers: int, width: int):
    def step(state, batch):
        def loss(params):
            x = batch["x"]
            for layer in params:
                x = jnp.tanh(x @ layer)
            return jnp.mean((x - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    shape = jax.ShapeDtypeStruct
    state = [shape((width, width), np.float32)] * layers
    return step, state, {k: shape((512, width), np.float32) for k in "xy"}
