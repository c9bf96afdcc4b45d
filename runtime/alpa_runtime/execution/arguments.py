"""Arguments and results of a step at the size that its caller sees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
import numpy as np

from alpa_runtime.errors import ArgumentMismatchError
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import InputInfo

_jax: Any = jax
jnp: Any = jax.numpy


def result_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of a result of the plan, that of all micro-batches where they are joined."""
    info = plan.outputs[index]
    if info.reduction != "concat" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def input_shape(plan: Plan, index: int) -> tuple[int, ...]:
    """The shape of input `index` of the plan, batches whole."""
    info = plan.inputs[index]
    if info.kind == "state" or not info.shape:
        return info.shape
    return (info.shape[0] * plan.num_micro_batches, *info.shape[1:])


def check_argument(x: Any, info: InputInfo, shape: tuple[int, ...]) -> Any:
    """The argument itself, or as a NumPy array if it is a Python number.

    Raises:
        ArgumentMismatchError: shape or dtype differ from the plan's.
    """
    if isinstance(x, bool | int | float | complex):
        x = np.asarray(x, jnp.dtype(info.dtype))
    found = tuple(np.shape(x))
    if found != shape:
        raise ArgumentMismatchError(
            f"shape {list(found)}, expected {list(shape)}",
            where=info.name,
            fix="give what the step was planned for, or plan it again for this shape",
        )
    dtype = _jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype != jnp.dtype(info.dtype):
        raise ArgumentMismatchError(
            f"dtype {dtype}, expected {info.dtype}",
            where=info.name,
            fix=f"convert it with .astype({info.dtype!r})",
        )
    return x if x.dtype == dtype else np.asarray(x, dtype)
