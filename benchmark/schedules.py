"""Schedules: seconds to build and verify programs, and how much meshes wait.

Four tables:
- `programs`: seconds of `alpa-build-schedule` and `alpa-verify-program` for each schedule, number
  of stages and number of micro-batches, on modules of one small function for each stage and phase.
  The target is below 2 s for each, of a process that has the machine to itself: `in_time` goes
  by CPU seconds of all threads.
- `bubbles`: the part of a step in which meshes wait, with runs of one second, beside the published
  formulas.
- `zero_bubble`: 1F1B, ZB-H1 and the automatic schedule with the profiled seconds of "Zero Bubble
  Pipeline Parallelism" (Qi et al., ICLR 2024; models of table 3, bubble rates of table 5), beside
  the published rates. 1p and 2p are limits of as many, and twice as many, activations as 1F1B
  keeps; 2p counts steps that overlap, as the paper does.
- `in_v`: schedules of two stages on each mesh in a V, with runs of one second: the time in which
  meshes wait and the activations they keep, in units of a micro-batch's runs and activations on a
  mesh, beside the published ones ("Pipeline Parallelism with Controllable Memory", Qi et al.,
  NeurIPS 2024; DualPipeV of DeepSeek's DualPipe); and 1F1B and ZB-H1.

`--picture P M` draws each schedule for P meshes and M micro-batches instead.

Run: python benchmark/schedules.py [--json] [--tables NAME ...] [--stages N ...]
     [--micro-batches N ...] [--picture P M]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from alpa_mlir.compiler import Module, schedule_table
from alpa_mlir.methods.schedule import ScheduleProblem, StageSeconds, generate_steps, spans

STAGES = (2, 4, 8, 16, 64)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BUDGET_SECONDS = 2.0

# Meshes, micro-batches, milliseconds of F, B (input), W and a send, hidden size, heads, and the
# published bubble rates of 1F1B, ZB-H1, ZB-1p and ZB-2p.
PAPER = (
    (8, 24, 18.522, 18.086, 9.337, 0.601, 2304, 24, 0.2431, 0.1585, 0.1585, 0.0433),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 2304, 24, 0.1985, 0.1242, 0.1242, 0.0039),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 2304, 24, 0.1240, 0.0674, 0.0674, 0.0026),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 4096, 32, 0.2347, 0.1323, 0.1323, 0.0029),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 4096, 32, 0.1898, 0.1045, 0.1045, 0.0022),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 4096, 32, 0.1091, 0.0554, 0.0554, 0.0010),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 5120, 40, 0.2552, 0.1397, 0.1397, 0.0066),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 5120, 40, 0.2082, 0.1088, 0.1088, 0.0054),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 5120, 40, 0.1251, 0.0576, 0.0576, 0.0028),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 6144, 48, 0.2646, 0.1421, 0.1421, 0.0038),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 6144, 48, 0.2168, 0.1106, 0.1106, 0.0029),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 6144, 48, 0.1352, 0.0594, 0.0594, 0.0018),
)
SEQUENCE = 1024


def _function(name: str, inputs: list[int], outputs: dict[int, str]) -> str:
    def port(value: int, extra: str = "") -> str:
        return (
            f"tensor<8x8xf32> {{alpa.value = {value} : i64, "
            f"alpa.sharding = #alpa.sharding<[R, R]>{extra}}}"
        )

    results = ", ".join(port(value, extra) for value, extra in outputs.items())
    return f"  func.func private @{name}({', '.join(map(port, inputs))}) -> ({results})\n"


def sliced_module(num_meshes: int, rounds: int, count: int, schedule: str) -> str:
    """A step whose stages have one weight each, cut into functions without bodies."""
    stages = num_meshes * rounds
    batch = stages  # The argument after the weights.
    row = schedule_table()[schedule]
    mesh_of = ScheduleProblem.placed_for(schedule, num_meshes, rounds, count).mesh_of
    activation = list(range(stages + 1, 2 * stages + 1))
    gradient = list(range(2 * stages + 1, 3 * stages + 1))
    total = list(range(3 * stages + 1, 4 * stages + 1))
    new = list(range(4 * stages + 1, 5 * stages + 1))
    rest = list(range(5 * stages + 1, 6 * stages + 1))
    grad, mean = ', alpa.accumulate = "sum"', ', alpa.accumulate = "concat"'
    arguments = [
        f'tensor<8x8xf32> {{alpa.kind = "state", alpa.value = {s} : i64, alpa.stage = {s} : i64}}'
        for s in range(stages)
    ]
    arguments.append(f'tensor<8x8xf32> {{alpa.kind = "batch", alpa.value = {batch} : i64}}')
    final = activation[-1:] if row.forward_only else new
    results = [
        f"tensor<8x8xf32> {{alpa.value = {value} : i64"
        + (', alpa.reduction = "concat"}' if row.forward_only else "}")
        for value in final
    ]
    text = f"module attributes {{alpa.num_micro_batches = {count} : i64}} {{\n"
    text += f"func.func private @main({', '.join(arguments)}) -> ({', '.join(results)})\n"
    for s in range(stages):
        text += (
            f"module @stage_{s} attributes "
            f"{{alpa.mesh = #alpa.mesh<shape = [1], devices = [{mesh_of[s]}]>}} {{\n"
        )
        given = batch if s == 0 else activation[s - 1]
        last = s == stages - 1
        extra = mean if last and row.forward_only else ""
        text += _function("forward", [s, given], {activation[s]: extra})
        if not row.forward_only:
            incoming = [s, given, activation[s] if last else gradient[s + 1]]
            back = {gradient[s]: ""} if s else {}
            if row.splits_backward and s:
                text += _function("backward_input", incoming, {**back, rest[s]: ""})
                text += _function("backward_weight", [given, rest[s]], {total[s]: grad})
            else:
                text += _function("backward", incoming, {**back, total[s]: grad})
            text += _function("update_0", [s, total[s]], {new[s]: ""})
        text += "}\n"
    return text + "}\n"


def time_programs(stages: list[int], counts: list[int]) -> Iterator[dict[str, Any]]:
    """A row for each schedule, number of stages and number of micro-batches."""
    for name, row in schedule_table().items():
        if name == "custom":
            continue
        for number in stages:
            rounds = row.stages_per_mesh if number > row.stages_per_mesh else 1
            for count in counts:
                module = Module(sliced_module(number // rounds, rounds, count, name))
                begin, before = time.perf_counter(), time.process_time()
                module.run(f"alpa-build-schedule{{schedule={name}}}")
                built = time.perf_counter()
                module.run("alpa-verify-program")
                end, busy = time.perf_counter(), time.process_time() - before
                yield {
                    "schedule": name,
                    "stages": number,
                    "meshes": number // rounds,
                    "micro_batches": count,
                    "build_seconds": round(built - begin, 4),
                    "verify_seconds": round(end - built, 4),
                    "cpu_seconds": round(busy, 4),
                    "in_time": busy < BUDGET_SECONDS,
                    "splits_backward": row.splits_backward,
                }


def _bubble(name: str, problem: ScheduleProblem, *, overlap: bool = False) -> float:
    problem = replace(problem, steps_overlap=overlap)
    times = spans(name, problem)
    end = max(end - begin for begin, end in times) if overlap else max(end for _, end in times)
    seconds = problem.seconds or (StageSeconds(),) * len(problem.mesh_of)
    runs = 1 if schedule_table()[name].forward_only else 3
    busy = max(
        problem.num_micro_batches * sum(sum(seconds[stage][:runs]) for stage in own)
        for own in map(problem.stages_of, range(problem.num_meshes))
    )
    return 1 - busy / end


def bubbles(stages: list[int], counts: list[int]) -> Iterator[dict[str, Any]]:
    """Bubble fractions beside the published formulas."""
    for meshes in stages:
        for count in counts:
            for name, rounds in [
                ("gpipe", 1),
                ("1f1b", 1),
                ("interleaved-1f1b", 2),
                ("interleaved-1f1b", 4),
                ("breadth-first", 2),
                ("breadth-first", 4),
                ("zb-h1", 1),
                ("inference", 1),
            ]:
                # The formulas hold once the pipeline is full.
                if count < meshes:
                    continue
                problem = ScheduleProblem.in_rounds(meshes, rounds, count)
                if name == "inference":
                    problem = replace(problem, has_backward=(False,) * len(problem.mesh_of))
                waiting, busy = meshes - 1, rounds * count
                formula = waiting / (waiting + (3 * busy if name == "zb-h1" else busy))
                found = _bubble(name, problem)
                yield {
                    "schedule": name,
                    "meshes": meshes,
                    "stages_per_mesh": rounds,
                    "micro_batches": count,
                    "formula": round(formula, 6),
                    "bubble": round(found, 6),
                    "equal": abs(found - formula) < 1e-9,
                }


def zero_bubble() -> Iterator[dict[str, Any]]:
    """Bubble rates and speedups over 1F1B with the paper's seconds, published and ours."""
    for meshes, count, f, b, w, send, hidden, heads, *published in PAPER:
        # Bytes for each token that B and W keep (Korthikanti et al., MLSys 2023).
        kept = 32 * hidden / (34 * hidden + 5 * heads * SEQUENCE)
        problem = replace(
            ScheduleProblem.in_rounds(meshes, 1, count),
            seconds=(StageSeconds(f, b, w, send, send),) * meshes,
            kept_parts=(kept,) * meshes,
        )
        ours = [
            _bubble("1f1b", problem),
            _bubble("zb-h1", problem),
            _bubble("zb-auto", replace(problem, limits=(float(meshes),) * meshes)),
            _bubble("zb-auto", replace(problem, limits=(2.0 * meshes,) * meshes), overlap=True),
        ]
        row: dict[str, Any] = {"meshes": meshes, "micro_batches": count}
        for label, rate, found in zip(
            ("1f1b", "zb_h1", "zb_1p", "zb_2p"), published, ours, strict=True
        ):
            row[label] = {
                "published_bubble": rate,
                "bubble": round(found, 4),
                "published_speedup": round((1 - rate) / (1 - published[0]), 4),
                "speedup": round((1 - found) / (1 - ours[0]), 4),
            }
        row["one_step_2p_speedup"] = round(
            (1 - _bubble("zb-auto", replace(problem, limits=(2.0 * meshes,) * meshes)))
            / (1 - ours[0]),
            4,
        )
        yield row


def in_v(stages: list[int], counts: list[int]) -> Iterator[dict[str, Any]]:
    """Waiting and memory of schedules in a V, published (for equal runs) and ours."""
    for p in stages:
        for count in counts:
            if count < 2 * p:
                continue
            waits = {
                "1f1b": 3.0 * (p - 1),
                "zb-h1": float(p - 1),
                "zb-v": 0.0,
                "v-half": 3 * p / 2,
                "v-min": 2.0 * p,
                "dualpipe-v": float(p - 1),
            }
            keeps = {"v-half": (p + 2) // 2, "v-min": (p + 4) // 3, "dualpipe-v": p + 0.5}
            for name, waiting in waits.items():
                each = schedule_table()[name].stages_per_mesh
                problem = ScheduleProblem.placed_for(name, p, each, count)
                end = max(end for _, end in spans(name, problem))
                times = spans(name, replace(problem, steps_overlap=True))
                most = 0
                for steps in generate_steps(name, problem):
                    kept = accumulate(
                        {"F": 1, "B": -1, "I": 0, "W": -1}[step.kind] for step in steps
                    )
                    most = max(most, *kept)
                yield {
                    "schedule": name,
                    "meshes": p,
                    "micro_batches": count,
                    "published_waiting_seconds": waiting,
                    "waiting_seconds": end / each - 3 * count,
                    "overlapping_steps_waiting_seconds": max(e - b for b, e in times) / each
                    - 3 * count,
                    "published_kept": keeps.get(name, p),
                    "kept": most / each,
                    "part_of_1f1b": round(most / each / p, 3),
                }


def picture(name: str, problem: ScheduleProblem) -> list[str]:
    """A row of characters for each mesh: a run's letter and micro-batch, a dot for each second
    of waiting; of a second stage on a mesh letters are small."""
    lists = generate_steps(name, problem)
    done: dict[tuple[str, int, int], int] = {}
    rows, at = ["" for _ in lists], [0] * len(lists)
    last = len(problem.mesh_of) - 1

    def ready(kind: str, stage: int, index: int) -> int | None:
        if kind == "F":
            return done.get(("F", stage - 1, index)) if stage else 0
        if kind == "W" or stage == last:
            return done.get(("I" if kind == "W" else "F", stage, index))
        return done.get(("B", stage + 1, index), done.get(("I", stage + 1, index)))

    while any(at[mesh] < len(steps) for mesh, steps in enumerate(lists)):
        for mesh, steps in enumerate(lists):
            while at[mesh] < len(steps):
                kind, stage, index = steps[at[mesh]]
                begin = ready(kind, stage, index)
                if begin is None:
                    break
                length = 2 if kind == "B" else 1
                now = len(rows[mesh]) // 3
                letter = kind if stage < problem.num_meshes else kind.lower()
                run = f"{letter}{index}".ljust(3, " ") + (length - 1) * "== "
                rows[mesh] += " . " * max(0, begin - now) + run
                done[kind, stage, index] = len(rows[mesh]) // 3
                at[mesh] += 1
    return [row.rstrip() for row in rows]


def pictures(meshes: int, count: int) -> Iterator[str]:
    """Each schedule's name and picture."""
    for name, row in schedule_table().items():
        if name == "custom":
            continue
        problem = ScheduleProblem.placed_for(name, meshes, row.stages_per_mesh, count)
        if row.forward_only:
            problem = replace(problem, has_backward=(False,) * len(problem.mesh_of))
        yield "\n".join((name, *picture(name, problem)))


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{name}")
    for row in rows:
        parts: list[str] = []
        for key, value in row.items():
            if isinstance(value, dict):
                parts.append(
                    f"{key} {value['bubble']:.4f} ({value['published_bubble']:.4f}) "
                    f"x{value['speedup']:.3f} (x{value['published_speedup']:.3f})"
                )
            else:
                parts.append(f"{key} {value}")
        print("  " + ", ".join(parts))


def main() -> None:
    """Print the tables, as text or with `--json` as one JSON object."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = ("programs", "bubbles", "zero_bubble", "in_v")
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument("--stages", nargs="+", type=int, default=list(STAGES))
    parser.add_argument("--micro-batches", nargs="+", type=int, default=list(MICRO_BATCHES))
    parser.add_argument("--picture", nargs=2, type=int, metavar=("P", "M"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.picture:
        print("\n\n".join(pictures(*options.picture)))
        return
    makers = {
        "programs": lambda: time_programs(options.stages, options.micro_batches),
        "bubbles": lambda: bubbles(options.stages, options.micro_batches),
        "zero_bubble": zero_bubble,
        "in_v": lambda: in_v(options.stages, options.micro_batches),
    }
    found = {name: list(makers[name]()) for name in options.tables}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, rows in found.items():
        if name == "zero_bubble":
            name += ": bubble (published) and speedup over 1f1b (published)"
        _show(name, rows)


if __name__ == "__main__":
    main()
