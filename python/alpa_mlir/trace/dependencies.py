"""What a step's jaxpr says about each of its results: what it depends on, and its phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from alpa_mlir.trace.jaxprs import bodies, call_body, is_literal
from alpa_mlir.trace.tagging import TAG_PREFIX

Phase = Literal["input", "forward", "backward", "update"]


@dataclass(frozen=True)
class ResultFacts:
    """Where one result comes from.

    Attributes:
        depends: bit i is set if the result may depend on input i.
        phase: phase of the equation that makes the result, read from JAX's name stack;
            `"input"` if the result is an input or a constant.
    """

    depends: int
    phase: Phase

    def depends_on(self, index: int) -> bool:
        return bool(self.depends >> index & 1)


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
    inputs = [ResultFacts(1 << i, "input") for i in range(len(closed.jaxpr.invars))]
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
            results = [ResultFacts(depends, phase_of(stack))] * len(eqn.outvars)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
