"""State and batches for a plan of which no more is known than shapes and dtypes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from alpa_runtime import trees
from alpa_runtime.calling_convention import Aval, CallingConvention
from alpa_runtime.parallel_step import ParallelStep
from alpa_runtime.plan import Plan
from alpa_runtime.plan.interface import CallInfo
from alpa_runtime.step_arguments import step_batch, step_state

from alpa_mlir.errors import PlanMismatchError

_jax: Any = jax
# Of weights: small enough that nothing overflows, and not negative, as second moments must be.
_SCALE = 0.02
_WIDE = ("float64", "int64", "uint64", "complex128")


def needs_wide_dtypes(plan: Plan) -> bool:
    """Whether the plan has dtypes of 64 bits, which JAX has to be told to keep."""
    return any(info.dtype in _WIDE for info in (*plan.inputs, *plan.outputs))


def callable_plan(plan: Plan) -> Plan:
    """The plan with a call of lists of arrays, where its own cannot be told.

    A plan that the compiler's tools wrote does not say how its step is called; that of another
    may take classes of a library that is not imported. Neither matters to random values.
    """
    try:
        CallingConvention.from_plan(plan)
        return plan
    except PlanMismatchError:
        pass
    infos = plan.arguments
    groups = [list(group) for _, group in itertools.groupby(infos, lambda info: info.kind)]
    arguments = {"tuple": [["*"] * len(group) for group in groups]}
    result = ["*"] * len(plan.results)
    call = CallInfo(arguments, result, (), True, {}, {})
    if plan.call is not None:
        keys = {"input_keys": plan.call.input_keys, "output_keys": plan.call.output_keys}
        call = replace(call, donate_state=plan.call.donate_state, **keys)
    return replace(plan, call=call)


def random_state(step: ParallelStep, seed: int = 0) -> Any:
    """A state for a step, made where the step wants it.

    Real numbers are drawn from [0, 0.02), whole numbers are 0, keys are different.
    """
    state = step_state(step.form, step.plan)
    if not state.leaves:
        return trees.unflatten(state.tree, [])

    def make(key: Any) -> Any:
        keys = _jax.random.split(key, len(state.leaves))
        made = [_state_leaf(item.leaf, keys[i]) for i, item in enumerate(state.leaves)]
        return trees.unflatten(state.tree, made)

    return step.init(make, _jax.random.key(seed))


def _state_leaf(leaf: Aval, key: Any) -> Any:
    numpy: Any = _jax.numpy
    if leaf.key_impl:
        own = _jax.random.key(0, impl=leaf.key_impl)
        return _jax.random.split(own, leaf.shape) if leaf.shape else own
    if numpy.issubdtype(leaf.dtype, numpy.inexact):
        return (_jax.random.uniform(key, leaf.shape) * _SCALE).astype(leaf.dtype)
    return numpy.zeros(leaf.shape, leaf.dtype)


def random_batch(step: ParallelStep, seed: int = 0) -> Any:
    """A batch for a step, on the host: the argument, or the tuple of them where they are several.

    Real numbers are normal, whole numbers 0 or 1, which suit any vocabulary.
    """
    batch = step_batch(step.form, step.plan)
    draw = np.random.default_rng(seed)
    leaves = [_batch_leaf(leaf, step.plan.num_micro_batches, draw) for leaf in batch.leaves]
    return trees.unflatten(batch.tree, leaves)


def _batch_leaf(leaf: Aval, count: int, draw: np.random.Generator) -> Any:
    numpy: Any = _jax.numpy
    shape = (leaf.shape[0] * count, *leaf.shape[1:])
    if leaf.key_impl:
        own = _jax.random.key(1, impl=leaf.key_impl)
        return _jax.random.split(own, shape)
    if numpy.issubdtype(leaf.dtype, numpy.inexact):
        return draw.standard_normal(shape).astype(leaf.dtype)
    return draw.integers(0, 2, shape).astype(leaf.dtype)
