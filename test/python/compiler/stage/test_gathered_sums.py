"""Random updates over several stages: their programs, interpreted, give the step's numbers.

All values are integers, so that sums in any order are the same.
"""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from alpa_mlir.compiler import Module
from jax.interpreters import mlir

_FUNCTIONS = {"add": np.add, "multiply": np.multiply, "negate": np.negative}
_COUNT = 2


def random_step(seed: int) -> tuple[str, str]:
    """A step as alpa-search-stages hands it over, and the same without stages."""
    rng = random.Random(seed)
    stages = rng.randint(2, 5)
    meshes = [rng.randrange(max(2, stages - 1)) for _ in range(stages)]
    kind = rng.choice(["tensor<i32>", "tensor<2xi32>"])
    values = ["%w0", "%w1"]
    lines: list[str] = []

    def emit(name: str, operands: list[str], phase: str, stage: int) -> None:
        result = f"%v{len(lines)}"
        where = f'{{alpa.phase = "{phase}", alpa.stage = {stage} : i64}}'
        lines.append(f"{result} = stablehlo.{name} {', '.join(operands)} {where} : {kind}")
        values.append(result)

    for stage in reversed(range(stages)):
        for _ in range(rng.randint(1, 2)):
            emit("multiply", ["%x", rng.choice(["%x", "%w0", "%w1"])], "backward", stage)
    for _ in range(rng.randint(5, 30)):
        name = rng.choice(["add"] * 5 + ["multiply", "negate"])
        operands = [rng.choice(values[-8:] if rng.random() < 0.7 else values)]
        if name != "negate":
            operands.append(rng.choice(values))
        emit(name, operands, "update", rng.randrange(stages))
    updates = [v for v, line in zip(values[2:], lines, strict=True) if '"update"' in line]
    results = rng.sample(updates, min(len(updates), rng.randint(1, 4)))
    rows = ", ".join(
        f"#alpa.stage<mesh = <shape = [1], devices = [{mesh}]>, layers = [{i}, {i + 1}]>"
        for i, mesh in enumerate(meshes)
    )
    attributes = f"alpa.num_micro_batches = {_COUNT} : i64, alpa.stages = [{rows}]"
    signature = (
        f'%w0: {kind} {{alpa.kind = "state"}}, %w1: {kind} {{alpa.kind = "state"}}, '
        f'%x: {kind} {{alpa.kind = "batch"}}'
    )
    types = ", ".join([kind] * len(results))
    body = "\n".join([*lines, f"return {', '.join(results)} : {types}"])
    main = f"func.func @main({signature}) -> ({types}) {{ {body} }}"
    return f"module attributes {{{attributes}}} {{ {main} }}", kind


def parse(module: Module) -> Any:
    """The module in JAX's bindings, which read properties of ops that they know only."""
    text = re.sub(r'("alpa[^\n]*)<{(.*)}> :', r"\1{\2} :", module.as_text(generic=True))
    return mlir.ir.Module.parse(text)


def evaluate(block: Any, values: dict[Any, Any], twice: bool = False) -> list[Any]:
    """What a function's body returns; `twice` adds up backward values of micro-batches."""
    for view in block.operations:
        op = view.operation
        operands = [values[v] for v in op.operands]
        if op.name == "func.return":
            return operands
        result = _FUNCTIONS[op.name.removeprefix("stablehlo.")](*operands)
        if twice and "backward" in str(op.attributes["alpa.phase"]):
            result = result * _COUNT
        values[op.results[0]] = result
    raise AssertionError("no return")


class Machine:
    """The meshes of a step, each at an instruction of its program."""

    def __init__(self, module: Any, arguments: list[Any]) -> None:
        ops = [view.operation for view in module.body]
        self.arguments = arguments
        self.functions: dict[str, Any] = {}
        for stage in (op for op in ops if op.name == "builtin.module"):
            for view in stage.regions[0].blocks[0].operations:
                function = view.operation
                path = [op.attributes["sym_name"].value for op in (stage, function)]
                self.functions["@{}::@{}".format(*path)] = function.regions[0].blocks[0]
        programs = [op for op in ops if op.name == "alpa.program"]
        self.lists = [[v.operation for v in op.regions[0].blocks[0].operations] for op in programs]
        self.at = [0] * len(self.lists)
        self.values: dict[Any, Any] = {}
        self.sent: dict[int, Any] = {}
        self.results: dict[int, Any] = {}

    def run(self) -> dict[int, Any]:
        moved = True
        while moved:
            moved = False
            for mesh in range(len(self.lists)):
                while self.at[mesh] < len(self.lists[mesh]) and self.step(mesh):
                    moved = True
        assert self.at == [len(ops) for ops in self.lists], "a mesh waits forever"
        return self.results

    def step(self, mesh: int) -> bool:
        op = self.lists[mesh][self.at[mesh]]
        operands = [self.values[v] for v in op.operands]
        number = {name: op.attributes[name] for name in op.attributes}
        made: list[Any] = []
        match op.name.removeprefix("alpa."):
            case "input":
                made = [self.arguments[number["arg"].value]]
            case "run":
                block = self.functions[str(number["callee"])]
                made = evaluate(block, dict(zip(block.arguments, operands, strict=True)))
            case "send":
                self.sent[number["tag"].value] = operands[0]
            case "recv":
                if number["tag"].value not in self.sent:
                    return False
                made = [self.sent[number["tag"].value]]
            case "zero":
                made = [np.zeros_like(self.arguments[0])]
            case "accumulate":
                made = [operands[0] + operands[1]]
            case "all_reduce":
                return self.all_reduce(list(number["members"]), number["tag"].value)
            case "output":
                self.results[number["result"].value] = operands[0]
            case "free":
                pass
            case name:
                raise AssertionError(name)
        for result, value in zip(op.results, made, strict=True):
            self.values[result] = value
        self.at[mesh] += 1
        return True

    def all_reduce(self, members: list[int], tag: int) -> bool:
        ops = [self.lists[m][self.at[m]] for m in members if self.at[m] < len(self.lists[m])]
        there = [
            op for op in ops if op.name == "alpa.all_reduce" and op.attributes["tag"].value == tag
        ]
        if len(there) < len(members):
            return False
        total = sum(self.values[op.operands[0]] for op in there)
        for mesh, op in zip(members, there, strict=True):
            self.values[op.results[0]] = total
            self.at[mesh] += 1
        return True


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_random_updates(first):
    num_sums = 0
    for seed in range(first, first + 40):
        text, kind = random_step(seed)
        arguments = [np.full((2,) if "x" in kind else (), n, np.int32) for n in (3, -5, 7)]
        module = Module(text)
        with mlir.ir.Context() as context:
            context.allow_unregistered_dialects = True
            whole = parse(module)
            main = next(iter(whole.body)).operation.regions[0].blocks[0]
            expected = evaluate(main, dict(zip(main.arguments, arguments, strict=True)), twice=True)
            module.run(
                "alpa-gather-sums,alpa-slice-stages,"
                "alpa-build-schedule{schedule=gpipe},alpa-verify-program"
            )
            sliced = parse(module)
            found = Machine(sliced, arguments).run()
            num_sums += module.as_text().count("alpa.all_reduce")
        for index, value in enumerate(expected):
            np.testing.assert_array_equal(found[index], value, err_msg=f"seed {seed}")
    assert num_sums > 20
