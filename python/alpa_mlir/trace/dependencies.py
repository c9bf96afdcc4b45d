"""What a step's jaxpr says about each of its results: what it depends on, and its phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from alpa_mlir.trace.jaxprs import bodies, call_body, is_literal
from alpa_mlir.trace.tagging import TAG_PREFIX

Phase = Literal["input", "forward", "backward", "update"]
_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general")


@dataclass(frozen=True)
class ResultFacts:
    """Where one result comes from.

    Attributes:
        depends: bit i is set if the result may depend on input i.
        phase: phase of the equation that makes the result, read from JAX's name stack;
            `"input"` if the result is an input or a constant.
        updates: bit i is set if the result is made of input i element by element, as `w - rate * g`
            is of `w`: by no product of matrices, and in its shape all the way.
        of_gradients: whether it is made of a gradient in this way.
    """

    depends: int
    phase: Phase
    updates: int = 0
    of_gradients: bool = False

    def depends_on(self, index: int) -> bool:
        return bool(self.depends >> index & 1)

    def is_update_of(self, index: int) -> bool:
        return bool(self.updates >> index & 1)


def phase_of(name_stack: str) -> Phase:
    """Phase of an op by its name stack, for example `jit(step)/transpose(jvp(alpa_eqn_3))`."""
    _, transposed, inside = name_stack.partition("transpose(")
    if transposed and "jvp(" in inside:
        return "backward"
    return "forward" if "jvp(" in name_stack or TAG_PREFIX in name_stack else "update"


def has_gradients(jaxpr: Any, scope: str = "") -> bool:
    """Whether a jaxpr holds equations of a gradient."""
    for eqn in jaxpr.eqns:
        stack = f"{scope}/{eqn.source_info.name_stack}"
        if phase_of(stack) == "backward":
            return True
        if any(has_gradients(inner, stack) for inner in bodies(eqn)):
            return True
    return False


def result_facts(closed: Any) -> list[ResultFacts]:
    """Facts on each result of a closed jaxpr, seen through nested calls."""
    inputs = [ResultFacts(1 << i, "input", 1 << i) for i in range(len(closed.jaxpr.invars))]
    return _walk(closed.jaxpr, inputs, "")


def _walk(jaxpr: Any, inputs: list[ResultFacts], scope: str) -> list[ResultFacts]:
    env: dict[Any, ResultFacts] = dict(zip(jaxpr.invars, inputs, strict=True))
    nothing = ResultFacts(0, "input")

    def read(atom: Any) -> ResultFacts:
        return nothing if is_literal(atom) else env.get(atom, nothing)

    for eqn in jaxpr.eqns:
        stack = f"{scope}/{eqn.source_info.name_stack}"
        operands = [read(atom) for atom in eqn.invars]
        body = call_body(eqn, is_kept=False)
        if body is not None and len(body[0].invars) == len(operands):
            results = _walk(body[0], operands, stack)
        else:
            depends = 0
            for operand in operands:
                depends |= operand.depends
            results = [_made(eqn, v, operands, depends, stack) for v in eqn.outvars]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _made(
    eqn: Any, result: Any, operands: list[ResultFacts], depends: int, stack: str
) -> ResultFacts:
    phase, updates = phase_of(stack), 0
    holds_gradients = any(has_gradients(body, stack) for body in bodies(eqn))
    of_gradients = phase == "backward" or holds_gradients
    if eqn.primitive.name not in _PRODUCTS:
        for atom, operand in zip(eqn.invars, operands, strict=True):
            if getattr(atom.aval, "shape", None) == getattr(result.aval, "shape", ()):
                updates |= operand.updates
                of_gradients |= operand.of_gradients
    return ResultFacts(depends, phase, updates, of_gradients)
