"""Steps lowered for CUDA, where no GPU is: what JAX writes then is read, planned and written."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import ShardParallel
from alpa_runtime.execution.compilation import stage_jobs
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.program_merge import merge_step, sums_of
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

HALVES = jnp.array([32, 32], jnp.int32)


def dropped(x, w):
    return (x @ w) * jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, x.shape)


# JAX lowers each of these otherwise for GPUs than for CPUs, or may.
FUNCTIONS = {
    "cumsum": lambda x, w: jnp.cumsum(x @ w, 1),
    "cumsum backwards": lambda x, w: jax.lax.cumsum(x @ w, 1, reverse=True),
    "cummax": lambda x, w: jax.lax.cummax(x @ w, 1),
    "ragged dot": lambda x, w: jax.lax.ragged_dot(x, jnp.stack([w, w]), HALVES),
    "dropout": dropped,
    "noise": lambda x, w: x @ w + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
    "top-k": lambda x, w: jax.lax.top_k(x @ w, 4)[0],
    "sort": lambda x, w: jnp.sort(x @ w, 1),
    "qr": lambda x, w: x @ jnp.linalg.qr(w)[0],
    "eigh": lambda x, w: x @ jnp.linalg.eigh(w + w.T)[1],
    "svd": lambda x, w: x @ jnp.linalg.svd(w, full_matrices=False)[0],
    "cholesky": lambda x, w: x @ jnp.linalg.cholesky(w @ w.T + jnp.eye(64)),
    "solve": lambda x, w: jnp.linalg.solve(w, x.T).T,
    "fft": lambda x, w: jnp.abs(jnp.fft.rfft(x @ w)),
    "lgamma": lambda x, w: jax.lax.lgamma(1 + (x @ w) ** 2),
    "segments": lambda x, w: jax.ops.segment_sum(x @ w, jnp.arange(64) % 8, 8),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_step_is_planned(name):
    def step(w, batch):
        def loss(w):
            return jnp.mean(FUNCTIONS[name](batch["x"], w).astype(jnp.float32) ** 2)

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    method = ShardParallel(num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster="dgx-h100", method=method, cache=False)
    plan = parallel.plan(shape, {"x": shape}).plan
    merged = merge_step(plan)
    jobs = stage_jobs(plan, donations(plan, merged, True), sums_of(merged))
    assert jobs
    for job in jobs.values():
        with mlir.make_ir_context():
            ir.Module.parse(job.text)
