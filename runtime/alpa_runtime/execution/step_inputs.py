"""How what a worker is given for a step becomes arrays on its devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
from jax.sharding import NamedSharding

from alpa_runtime.errors import WorkerError
from alpa_runtime.execution.actions import Place
from alpa_runtime.execution.array_store import ArrayStore, Form
from alpa_runtime.execution.executor import BoundStep
from alpa_runtime.execution.messages import Held, Parts, StepRequest

_jax: Any = jax
_jnp: Any = jax.numpy


class StepInputs:
    """Finds and places the inputs of steps.

    Args:
        donate_state: a step uses up carried state.
        where: the worker, for messages.
    """

    def __init__(self, bound: BoundStep, store: ArrayStore, donate_state: bool, where: str) -> None:
        self._bound = bound
        self._store = store
        self._donate = donate_state
        self._where = where

    def form(self, place: Place) -> Form:
        """How a place holds its input."""
        value = self._bound.step.values[place.value]
        return value.mesh, value.tensor, place.micro_batch

    def state(self, place: Place, request: StepRequest) -> jax.Array:
        """The array of a place that takes state."""
        given, target = self._given(place, request), self._bound.shardings[place.value]
        if not isinstance(given, Held):
            return self._bound.cutters[place.value].put(given, self._name(place))
        array = self._held(place, given.uid, target)
        is_given = self._donate and place.value in self._bound.given
        return _jnp.copy(array) if given.copy and is_given else array

    def batch(self, place: Place, request: StepRequest, target: NamedSharding) -> jax.Array:
        """The array of a place that takes a part of a batch."""
        given = self._given(place, request)
        if isinstance(given, Held):
            return self._held(place, given.uid, target)
        return self._bound.cutters[place.value].put(given, self._name(place))

    def _name(self, place: Place) -> str:
        return f"{self._where}: {self._bound.plan.inputs[place.arg].name}"

    def _given(self, place: Place, request: StepRequest) -> Held | Parts:
        given = request.inputs.get(place.arg)
        if given is None:
            raise WorkerError("has not been given", where=self._name(place))
        return given

    def _held(self, place: Place, uid: int, target: NamedSharding | None) -> jax.Array:
        """An array that is here, as the place wants it."""
        arrays = self._store.get(uid)
        if arrays is None:
            raise WorkerError(f"array {uid} is not here", where=self._name(place))
        mesh, tensor, micro_batch = form = self.form(place)
        array = arrays.get(form)
        if array is not None:
            return array
        for (held_mesh, held, part), candidate in arrays.items():
            if (held_mesh, part) == (mesh, micro_batch) and held.shape == tensor.shape:
                return _jax.jit(_same, out_shardings=target)(candidate)
        raise WorkerError(
            f"array {uid} is not on mesh {mesh} as {tensor.as_text()}", where=self._name(place)
        )


def _same(x: jax.Array) -> jax.Array:
    return x
