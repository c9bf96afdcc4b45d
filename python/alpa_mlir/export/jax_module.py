"""A plan of one mesh as a Python module that `jax.jit` follows without this package."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_runtime import trees
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import plan_summary
from alpa_runtime.plan.program import InputOp
from alpa_runtime.plan.strategy import strategy_text
from alpa_runtime.step_arguments import PlacementSpec, argument_placements, result_placements

from alpa_mlir.errors import ExportError, PlanMismatchError
from alpa_mlir.export import plain_jax
from alpa_mlir.export.formats import Exported

_NAME = re.compile(r"[^\W\d]\w*")
_TABLES = re.compile(r"# <tables>\n.*# </tables>\n", re.DOTALL)
_ACCUMULATION = re.compile(r"def micro_batched_value_and_grad\(.*?(?=\n\n\ndef )\n\n\n", re.DOTALL)
_SPEC = re.compile(r"\[([^\]]*)\]")
_AXES = re.compile(r"S(\d+)")
_TAG = re.compile(r"alpa_eqn_(\d+)")
_TYPE = re.compile(r"((?:\d+x)*)[a-zA-Z][\w<>]*")


def export(plan: Plan) -> Exported:
    """The module.

    Raises:
        ExportError: the plan keeps state on the hosts, or does not say how its step is called.
    """
    where = f"plan of {plan.name}"
    if plan.call is None:
        raise ExportError(
            "it does not say how its step is called", where=where, fix="save the planned step"
        )
    try:
        given = argument_placements(plan)[: len(plan.arguments)]
        made = result_placements(plan)
    except (KeyError, IndexError, ValueError) as error:
        raise PlanMismatchError(
            f"its program does not fit together ({error})", where=f"{where}: programs"
        ) from None
    if any(tensor.on_host for tensor in _inputs(plan)):
        raise ExportError(
            "state in the memory of the hosts, which plain jax.jit does not fetch",
            where=where,
            fix='plan with offload="none"',
        )
    names, state = _arguments(plan)
    constraints, notes = _constraints(plan)
    if not plan.call.names:
        notes.append(
            "the plan does not say which arguments its step takes by name alone; give the step as "
            "a function that takes them by position, or plan it again"
        )
    count = plan.num_micro_batches
    source = inspect.getsource(plain_jax)
    source = source[source.index("# pyright") :]
    if count > 1:
        why = _why_not_accumulated(plan)
        loop = f"there is no general one: {why}" if why else "micro_batched_value_and_grad is one"
        notes.append(
            f"the plan takes {count} micro-batches; jax.jit runs the step as it is written, which "
            "needs more memory for activations if it has no loop of gradient accumulation; " + loop
        )
        source = _ACCUMULATION.sub("", source) if why else source
    else:
        source = _ACCUMULATION.sub("", source)
    if plan.padded:
        notes.append(
            f"the plan pads dimensions ({', '.join(plan.padded)}); values that have them are left "
            "to XLA"
        )
    mesh = plan.meshes[0]
    if len(mesh.devices) > 1 and not any(any(_partition(placement)) for placement in given):
        notes.append(
            "no argument is split, so that each device computes the whole step"
            + ("; plan with padding='none' for shardings of what there is" if plan.padded else "")
        )
    axes = dict(zip(mesh.axes, mesh.shape, strict=True))
    tables = [
        f"AXES = {axes!r}",
        f"DEVICES = {list(mesh.devices)!r}",
        f"MICRO_BATCHES = {count}",
        f"NAMES = {names!r}",
        f"STATIC = {[item.position for item in plan.call.static]!r}",
        f"STATE = {state!r}",
        *_table("ARGUMENTS", plan.arguments, given, plan.call.input_keys),
        *_table("RESULTS", plan.results, made, plan.call.output_keys),
        "CONSTRAINTS = {",
        *(line for name, entries in constraints.items() for line in _entry(name, entries)),
        "}",
    ]
    text = _TABLES.sub(lambda _: "\n".join(tables) + "\n", source)
    return Exported(_header(plan, names, notes) + text, tuple(notes))


def _header(plan: Plan, names: Sequence[str], notes: Sequence[str]) -> str:
    assert plan.call is not None
    count = len(names) - plan.call.by_name
    args = ", ".join(names)
    given = ", ".join([*names[:count], *(f"{name}={name}" for name in names[count:])])
    kinds = strategy_text(plan)
    lines = [
        f"Shardings of {plan.name}, for `jax.jit`; alpa_mlir is not needed.",
        "",
        *([f"Strategy: {kinds}."] if kinds else []),
        plan_summary(plan),
        *(f"\nNote: {note}." for note in notes),
        "",
        "    import NAME_OF_THIS_FILE as shardings",
        "",
        f"    step = shardings.jit({plan.name}, {given})",
        f"    {args}{',' * (len(names) == 1)} = shardings.place({given})",
        f"    result = step({given})",
        "",
        "`argument_specs` and `result_specs` are the trees of `PartitionSpec`s, for code of one's "
        "own.",
    ]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n\n'


def _inputs(plan: Plan) -> list[Any]:
    return [op.tensor for program in plan.programs for op in program.only(InputOp)]


def _arguments(plan: Plan) -> tuple[list[str], list[int]]:
    """Names of all arguments, and the positions of those that results replace, every leaf."""
    assert plan.call is not None
    static = {item.position for item in plan.call.static}
    try:
        counts = trees.leaf_counts(plan.call.arguments)
    except (ValueError, IndexError):
        counts = []
    positions = range(len(static) + len(counts))
    if sum(counts) != len(plan.arguments) or not static <= {*positions}:
        raise PlanMismatchError(
            f"the tree has {sum(counts)} leaves for {len(plan.arguments)} arrays",
            where=f"plan of {plan.name}: call.arguments",
        )
    leaves, sizes = iter(plan.arguments), iter(counts)
    if plan.call.names and len(plan.call.names) != len(positions):
        raise PlanMismatchError(
            f"{len(plan.call.names)} names for {len(positions)} arguments",
            where=f"plan of {plan.name}: call.names",
        )
    names = list(plan.call.names)
    state: list[int] = []
    for position in positions:
        own = [] if position in static else [next(leaves) for _ in range(next(sizes))]
        if not plan.call.names:
            match = _NAME.match(own[0].name) if own else None
            names.append(f"argument_{position}" if match is None else match[0])
        if own and all(leaf.carried_by is not None for leaf in own):
            state.append(position)
    return names, state


def _why_not_accumulated(plan: Plan) -> str:
    """Why gradients of micro-batches do not add up to those of the batch; empty if they do."""
    exactness = plan.exactness
    found = {
        "factors are known behind all micro-batches": exactness.scales,
        "the update needs examples together": exactness.joins,
        "values of the whole batch are part of the loss": exactness.repeats,
        "examples see each other": exactness.barriers,
        "micro-batches are batches of their own": exactness.estimates,
    }
    for why, places in found.items():
        if places:
            return f"{why} ({places[0]})"
    if any(item.per_micro_batch for item in plan.inputs):
        return (
            "each micro-batch has a part of its own of what the step makes for the whole batch, "
            "such as dropout's random bits"
        )
    if any(item.whole_of is not None for item in plan.inputs):
        return "values of the whole batch are part of the loss"
    return ""


def _table(
    name: str,
    infos: Sequence[Any],
    placements: Sequence[PlacementSpec],
    keys: Mapping[int, str],
) -> list[str]:
    lines = [f"{name} = {{"]
    for number, (info, placement) in enumerate(zip(infos, placements, strict=True)):
        shape, axes = info.shape, _partition(placement)
        if number in keys:  # The plan has the key's data.
            shape, axes = shape[:-1], axes[: len(shape) - 1]
        dims = ", ".join(map(str, shape))
        lines.append(f"    {info.name!r}: {_spec_text(axes)},  # {info.dtype}[{dims}]")
    return [*lines, "}"]


def _partition(placement: PlacementSpec) -> list[tuple[str, ...]]:
    if not placement.sharding_specs:
        return [()] * len(placement.shape)
    spec: Any = placement.sharding_specs[0]
    return [
        () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in spec
    ]


def _spec_text(axes: Sequence[tuple[str, ...]]) -> str:
    """`P('x', None, ('y', 'z'))`, without what is None at the end."""
    shown = [None if not names else names[0] if len(names) == 1 else names for names in axes]
    while shown and shown[-1] is None:
        shown.pop()
    return f"P({', '.join(map(repr, shown))})"


# An operation's operands or results: shapes, and the axes that split each dimension.
_Held = list[tuple[tuple[int, ...], list[tuple[str, ...]]]]
_Constraint = tuple[_Held, _Held]


def _constraints(plan: Plan) -> tuple[dict[str, list[_Constraint]], list[str]]:
    """By the values' names, what the plan decided of their operations, and notes."""
    explanation = plan.explanation(0)
    if explanation is None:
        return {}, ["the plan came without its explanation, so values inside of the step are free"]
    names = plan.meshes[0].axes
    found: dict[str, list[tuple[int, _Constraint]]] = {}
    for row in explanation["ops"]:
        # The update goes by how state is given and returned.
        if row["phase"] == "update" or "/" not in row["where"] or "types" not in row:
            continue
        types, specs = (str(row[part]).split(" -> ") for part in ("types", "specs"))
        if len(types) != 2 or len(specs) != 2:
            continue
        operands = _held(types[0], specs[0], names)
        results = _held(types[1], specs[1], names)
        if operands is None or results is None:
            continue
        scopes = row["where"].split("/", 1)[1]  # Without the step's own name.
        tag = _TAG.search(row["where"])
        place = int(tag[1]) if tag else 0
        entry = (-place if "transpose(" in scopes else place, (operands, results))
        found.setdefault(plain_jax.value_name(scopes), []).append(entry)
    if not found:
        return {}, ["the plan says nothing of values inside of the step, which are free"]
    return _shared_by_layers(
        {
            name: [held for _, held in sorted(entries, key=lambda entry: entry[0])]
            for name, entries in found.items()
        }
    ), []


def _shared_by_layers(found: dict[str, list[_Constraint]]) -> dict[str, list[_Constraint]]:
    """One name for values that several layers hold alike, most of them; others keep their own."""
    layers: dict[str, list[str]] = {}
    for name in found:
        layers.setdefault(plain_jax.any_layer(name), []).append(name)
    result: dict[str, list[_Constraint]] = {}
    for shared, names in layers.items():
        counts = Counter(repr(found[name]) for name in names)
        most, count = counts.most_common(1)[0]
        for name in names:
            if count > 1 and repr(found[name]) == most:
                result.setdefault(shared, found[name])
            else:
                result[name] = found[name]
    return result


def _held(types: str, specs: str, names: Sequence[str]) -> _Held | None:
    """The tensors of one side of an operation; None if these are no plain ones."""
    shapes = [
        tuple(map(int, match[1].split("x")[:-1])) for match in _TYPE.finditer(types.strip("()"))
    ]
    axes = [_axes(match[1], names) for match in _SPEC.finditer(specs)]
    if len(shapes) != len(axes) or any(item is None for item in axes):
        return None
    pairs = [(shape, item or []) for shape, item in zip(shapes, axes, strict=True)]
    return pairs if all(len(shape) == len(item) for shape, item in pairs) else None


def _axes(text: str, names: Sequence[str]) -> list[tuple[str, ...]] | None:
    result: list[tuple[str, ...]] = []
    for dim in text.split(", ") if text else ():
        match = _AXES.fullmatch(dim)
        axes = [int(axis) for axis in match[1]] if match else []
        if (match is None and dim != "R") or any(axis >= len(names) for axis in axes):
            return None
        result.append(tuple(names[axis] for axis in axes))
    return result


def _entry(name: str, entries: Sequence[_Constraint]) -> list[str]:
    """Lines of `CONSTRAINTS`; of those with the same shapes one is enough if they are all alike."""

    def side(held: _Held) -> str:
        return f"[{', '.join(f'({shape!r}, {_spec_text(axes)})' for shape, axes in held)}]"

    lines = [f"        ({side(operands)}, {side(results)})," for operands, results in entries]
    shapes = [tuple(tuple(shape for shape, _ in held) for held in entry) for entry in entries]
    kinds: dict[Any, list[str]] = {}
    for line, key in zip(lines, shapes, strict=True):
        kinds.setdefault(key, []).append(line)
    alike = {key: len(set(found)) == 1 for key, found in kinds.items()}
    kept = [
        line
        for place, (line, key) in enumerate(zip(lines, shapes, strict=True))
        if not alike[key] or shapes.index(key) == place
    ]
    return [f"    {name!r}: [", *kept, "    ],"]
