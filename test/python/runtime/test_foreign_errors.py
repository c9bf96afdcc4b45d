"""Messages of XLA, JAX, tensorstore, Ray and IREE, real ones where these are installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from alpa_runtime.foreign_errors import (
    ActorEnd,
    StoreFailure,
    actor_end,
    first_iree_error,
    first_line,
    missing_kernel,
    says_donated,
    says_out_of_memory,
    says_used_up,
    store_failure,
)


def test_jax_on_used_up_arrays():
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(RuntimeError) as caught:
        deleted.block_until_ready()
    assert says_used_up(caught.value)
    donated = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    with pytest.raises(RuntimeError) as caught:
        donated.block_until_ready()
    assert says_used_up(caught.value)
    assert says_donated(caught.value)
    assert not says_out_of_memory(caught.value)


@pytest.mark.parametrize("version", [1, 4], ids=["untyped", "typed"])
def test_xla_without_a_kernel(version):
    result = jax.ShapeDtypeStruct((3,), jnp.float32)
    call = jax.ffi.ffi_call("a_kernel_of_gpus", result, custom_call_api_version=version)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(call)(jnp.ones(3)).block_until_ready()
    assert missing_kernel(caught.value) == "a_kernel_of_gpus"
    assert missing_kernel(RuntimeError("Out of memory")) is None


def test_xla_without_memory():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(lambda: jnp.ones((1 << 45,), jnp.float32) * 2)().block_until_ready()
    assert says_out_of_memory(caught.value)
    assert "\n" not in first_line(caught.value)


@pytest.mark.parametrize(
    ("text", "failure", "said"),
    [
        ('NOT_FOUND: reading "c/0" [source locations=x]', "DAMAGED", 'NOT_FOUND: reading "c/0"'),
        ("DATA_LOSS: Digest mismatch\nmore", "DAMAGED", "DATA_LOSS: Digest mismatch"),
        ("NOT_FOUND: Error writing x", "OTHER", "NOT_FOUND: Error writing x"),
        ("ABORTED: Error writing x: No space left on device", "NO_ROOM", None),
        ("PERMISSION_DENIED: Error reading x", "UNREADABLE", None),
        ("", "OTHER", ""),
    ],
)
def test_tensorstore(text, failure, said):
    assert store_failure(ValueError(text)) == (
        StoreFailure[failure],
        text if said is None else said,
    )


def test_ray_and_iree():
    low = "Task killed,\n node running low on memory: 7.46GB used / 23.54GB limit (0.3) ..."
    assert actor_end(Exception(low)) == (ActorEnd.NODE_OUT_OF_MEMORY, "7.46GB used / 23.54GB limit")
    assert actor_end(Exception("it\n  is gone")) == (ActorEnd.OTHER, "it is gone")
    message = "Invoked with:\n x\nfoo.mlir:3:4: error: no such op\n  error: again"
    assert first_iree_error(Exception(message)) == "no such op"
    assert first_iree_error(Exception("")) == "no reason given"
