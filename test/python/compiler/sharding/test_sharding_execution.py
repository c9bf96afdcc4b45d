"""Steps run under the shardings that the solver chose equal the single-device step."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import ShardParallel
from clusters import round_figures


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "mesh_shape"),
    [
        ("mlp", (1, 4)),
        ("mlp", (2, 2)),
        ("embedding", (2, 2)),  # gather and scatter-add over a split table
        ("moe", (2, 2)),
        ("lstm", (1, 4)),  # a loop, split along what its iterations keep
        ("gpt_scan", (2, 2)),
        ("wide_resnet", (1, 4)),  # convolutions
        ("sort_top_k", (2, 2)),
    ],
)
def test_step_equals_single_device(name: str, mesh_shape: tuple[int, ...]) -> None:
    model = zoo.get(name)
    state, batch = model.init()
    expected = jax.jit(model.step)(state, batch)
    step = alpa_mlir.parallelize(
        model.step,
        cluster=round_figures(4),
        method=ShardParallel(mesh_shape=mesh_shape),
        donate_state=False,
    )
    found = step(state, batch)
    for want, got in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        want, got = np.asarray(want), np.asarray(got)
        # Adam turns gradients that are zero but for rounding into steps of 1e-3.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6 + 1e-5 * np.abs(want).max())


def convolve(x, kernel, **groups):
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims, **groups)


def separable(params, x):
    """Fewer examples than devices, so that some of these repeat what others do."""
    x = jnp.sin(convolve(x, params["kernel"], feature_group_count=4))
    return jnp.mean((x @ params["mix"]) ** 2)


def patches(params, x):
    """Where one axis splits the image and another one the features."""
    dims = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, params["patch"], (2, 2), "VALID", dimension_numbers=dims)
    return jnp.mean(jnp.sin(x) ** 2)


def grouped_examples(params, x):
    return jnp.mean(jnp.sin(convolve(x, params["wide"], batch_group_count=2)) ** 2)


@pytest.mark.parametrize("loss", [separable, patches, grouped_examples])
def check_step(loss, params, x, method) -> None:
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    planned = alpa_mlir.parallelize(
        step,
        cluster="cpu-test",
        method=ShardParallel(method=method, mesh_shape=(2, 4)),
        donate_state=False,
    )
    expected = jax.tree.leaves(jax.jit(step)(params, x))
    for want, got in zip(expected, jax.tree.leaves(planned(params, x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("loss", [separable, patches, grouped_examples])
@pytest.mark.parametrize("method", ["data-parallel", "zero-3", "megatron"])
def test_convolutions(method, loss) -> None:
    keys = iter(jax.random.split(jax.random.key(0), 5))
    shapes = {"kernel": (3, 3, 1, 8), "mix": (8, 8), "patch": (2, 2, 4, 8), "wide": (3, 3, 4, 8)}
    params = {name: jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
    check_step(loss, params, jax.random.normal(next(keys), (4, 8, 8, 4)), method)


def test_fft_between_split_products() -> None:
    """Which XLA for CPUs would lay out so that it cannot transform them."""

    def loss(params, x):
        x = jnp.abs(jnp.fft.fft(jnp.tanh(x @ params[0]), axis=2) + 0.1) ** 2 / 4
        return jnp.mean(jnp.tanh(x @ params[1]) ** 2)

    up, down, x = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(6, 20), (20, 8), (8, 5, 6)])
    )
    check_step(loss, [0.3 * up, 0.3 * down], x, "megatron")
