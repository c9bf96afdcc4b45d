"""`alpa-mlir plan`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alpa_mlir.cli._command import (
    Answer,
    add_force,
    count,
    file_in_folder,
    interruptible,
    positive,
    progress,
    refuse_existing,
    refuse_existing_plan,
    reserved,
)
from alpa_mlir.cli._source import (
    SOURCE,
    Source,
    add_source,
    alternative_fields,
    check_inputs,
    here,
    plan_alternatives,
    plan_source,
    trace_source,
)
from alpa_mlir.errors import EntryPointError

DESCRIPTION = (
    "Finds the best plan for a step on a cluster: pipeline stages, the devices of each, how every "
    "tensor is split, micro-batches and schedule. Prints it, and writes it with -o; a saved plan "
    "runs without the compiler and the model's code. With --frontier: what a step takes with other "
    "memory and on other numbers of devices, and what it costs."
)
EXAMPLES = """\
  alpa-mlir plan train.py:entry --cluster dgx-a100 -o my_plan
  alpa-mlir plan train.py:entry --cluster dgx-h100:8 --compare --price 2.5
  alpa-mlir plan my_package.train:entry --cluster p4d.24xlarge:16 --set layers=24 -o my_plan
  alpa-mlir plan train.py:entry --cluster cluster.yaml --micro-batches 4,8 --schedule 1f1b
  alpa-mlir plan train.py:entry --cluster dgx-a100 --method shard --shardings zero-2 --json
  alpa-mlir plan train.py:entry --cluster cluster.yaml --method pipeshard --submeshes 1x4,1x4
  alpa-mlir plan model.mlir --cluster dgx-a100 --batch-arguments 5 -o my_plan
  alpa-mlir plan train.py:entry --cluster dgx-a100:7 --from my_plan -o new_plan
  alpa-mlir plan train.py:entry --cluster p5.48xlarge:16 --frontier --price 4 --picture costs.svg
"""
# Options of --frontier, and the arguments of `TracedStep.frontier` that they set.
_OF_FRONTIER = ("over", "price", "tokens")
_ONLY_OF_FRONTIER = ("over", "picture")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "an entry point (module:function, path/file.py:function), or a .mlir file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="where to write the plan"
    )
    add_force(parser)
    parser.add_argument(
        "--from",
        dest="start",
        metavar="PLAN",
        help="a plan's folder: look near it, in seconds, for a step or a cluster that changed, and "
        "say what stays and what changes (docs/stage-search.md)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also plan data parallelism, FSDP, and the best of Megatron-LM's grids, and show them "
        "beside the plan; takes two to three times as long as the plan alone",
    )
    parser.add_argument(
        "--price",
        type=positive,
        metavar="PRICE",
        help="of a device for an hour: also show what 10^9 tokens or 10^6 rows cost",
    )
    parser.add_argument(
        "--tokens",
        type=count,
        metavar="N",
        help="tokens of a step (default: the elements of the largest batch of integers with two "
        "dimensions)",
    )
    group = parser.add_argument_group(
        "frontier", "many plans, of which only the predictions are shown (docs/frontier.md)"
    )
    group.add_argument(
        "--frontier",
        action="store_true",
        help="show what a step takes with other memory of the devices, and on parts of the cluster",
    )
    group.add_argument(
        "--over",
        choices=("memory", "devices"),
        help="look at one of these alone",
    )
    group.add_argument(
        "--picture", type=file_in_folder, metavar="FILE.svg", help="also draw the frontier"
    )


def run(options: argparse.Namespace) -> Answer:
    if Path(options.source).is_dir():
        raise EntryPointError(
            "a folder is no step" if options.source else "no step is named",
            where=options.source or "plan",
            fix=f"give {SOURCE.partition(', ')[2]}; `alpa-mlir explain` shows a plan, and --from "
            "begins with one",
        )
    if options.frontier:
        if options.compare:
            options.error("--frontier shows predictions of many plans; leave --compare out")
        return _frontier(options)
    for name in _ONLY_OF_FRONTIER:
        if getattr(options, name) is not None:
            options.error(f"--{name} goes with --frontier")
    refuse_existing_plan(options)
    check_inputs(options)
    from alpa_runtime.plan import Plan

    with reserved(options.output):
        from alpa_mlir.report.method_comparison import alternatives_text
        from alpa_mlir.simulator.figures import figures_of

        start = None if options.start is None else Plan.load(options.start)
        source = plan_source(options, start)
        figures = figures_of(source.plan, price=options.price, tokens=options.tokens)
        text = source.as_text(figures)
        fields = plan_fields(source) | {"figures": figures.to_fields()}
        if start is not None:
            found = start.diff(source.plan)
            text += f"\n{found.in_words()}"
            fields["start"] = asdict(found)
        if options.compare:
            others = plan_alternatives(options, source, parts=False)
            text += f"\n\n{alternatives_text(others, source.plan)}"
            fields["alternatives"] = alternative_fields(others)
        if options.output is not None:
            source.plan.save(options.output)
            text += f"\nwrote {options.output}"
            fields["output"] = str(options.output)
    return Answer(text, fields)


def _frontier(options: argparse.Namespace) -> Answer:
    if options.start is not None:
        options.error(
            "--frontier is many plans, none of which begins with another; leave --from out"
        )
    if options.output is not None:
        options.error("--frontier is many plans, of which -o would write none; leave -o out")
    if options.picture is not None and options.picture.suffix != ".svg":
        options.error(f"--picture {options.picture} is no .svg file")
    refuse_existing(options, "picture")
    traced, _ = trace_source(options)
    wanted = {name: getattr(options, name) for name in _OF_FRONTIER}
    given = {name: value for name, value in wanted.items() if value is not None}
    bar = progress(options, "frontier", "search")
    with here(options, traced.cluster):
        found = interruptible(lambda: traced.frontier(**given, progress=bar or False))
    text, fields = found.as_text(), found.to_fields()
    if options.picture is not None:
        from alpa_mlir.report.frontier_picture import frontier_svg

        options.picture.write_text(frontier_svg(found), encoding="utf-8")
        text += f"\nwrote {options.picture}"
        fields["picture"] = str(options.picture)
    return Answer(text, fields)


def plan_fields(source: Source) -> dict[str, Any]:
    """What a plan decides, for machines."""
    from alpa_runtime.plan.plan import idle_text
    from alpa_runtime.plan.strategy import strategy_text

    plan = source.plan
    return {
        "name": plan.name,
        "cluster": plan.cluster.get("name"),
        "num_devices": sum(len(mesh.devices) for mesh in plan.meshes),
        "num_micro_batches": plan.num_micro_batches,
        "exact": plan.exactness.exact,
        "schedule": plan.pipeline_schedule or None,
        "strategy": strategy_text(plan),
        "predicted": dict(plan.predicted),
        "timed_out_solves": plan.timed_out_solves,
        "idle": idle_text(plan),
        "padded": list(plan.padded),
        "planning": dict(plan.planning),
        "stages": [
            {
                "layers": list(stage.layers),
                "mesh": stage.mesh,
                "mesh_shape": list(plan.meshes[stage.mesh].shape),
                "devices": list(plan.meshes[stage.mesh].devices),
                "predicted": dict(stage.predicted),
                "solver": dict(stage.solver),
                "weights": [
                    {"name": w.name, "shape": list(w.shape), "spec": [list(d) for d in w.spec]}
                    for w in stage.weights
                ],
            }
            for stage in plan.stages
        ],
        "tried": [asdict(row) for row in plan.tried],
    }
