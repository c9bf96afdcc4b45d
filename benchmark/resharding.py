"""Transfers between meshes: right bytes, bytes over slow links and seconds, against the possible.

Random transfers are planned by every strategy. Each plan is carried out in NumPy, which shows that
every device ends with the right bytes, and taken on a simulated network of the cluster's devices
and adapters. Bounds come from the shards alone: bytes that each host needs and lacks, and a linear
program for the seconds. Plans, execution, simulation and bounds share no code (docs/resharding.md).

Two tables compare the strategies on published transfers: those of Wide-ResNet pipelines of the
Alpa paper (its figure 11), and the micro-benchmarks of Zhuang et al., "On Optimizing the
Communication of Model Parallelism" (MLSys 2023).

Run: python benchmark/resharding.py [--cases N] [--tables random wresnet micro] [--worst N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from alpa_mlir.errors import PlanMismatchError
from alpa_mlir.simulator.transfer_network import Network, least_seconds, least_slow_bytes
from alpa_runtime.execution.reshard_steps import prove
from alpa_runtime.plan.reshard import read_step
from transfers import tables
from transfers.cases import Case, Seeded, random_case

Json = dict[str, Any]
STRATEGIES = ("naive", "local-allgather", "broadcast", "auto")
NEAR_BOUND = 1.1
TABLES = ("random", "wresnet", "micro")


@dataclass(frozen=True)
class Measured:
    """One strategy's plan of a transfer.

    Attributes:
        chosen: the strategy that it came from.
        wrong: what the reference executor found wrong; empty if nothing.
        seconds: on the simulated network.
        foreseen_seconds: by the compiler's cost model.
        slow_bytes: from host to host.
        planning_seconds: of the compiler.
    """

    chosen: str
    wrong: str
    seconds: float
    foreseen_seconds: float
    slow_bytes: float
    planning_seconds: float


def measure(case: Case, strategy: str, network: Network) -> Measured:
    """Plan, prove and simulate."""
    start = time.perf_counter()
    plan = case.plan(strategy)
    planning_seconds = time.perf_counter() - start
    steps = [read_step(line) for line in plan["steps"]]
    wrong = ""
    try:
        prove(steps, case.boxes(case.source), case.boxes(case.target))
    except PlanMismatchError as error:
        wrong = str(error)
    times = network.simulate(steps, case.item_bytes)
    if abs(times.slow_bytes - plan["slow_bytes"]) > 0.5:
        wrong += f"the plan says {plan['slow_bytes']} slow bytes, its steps {times.slow_bytes:.0f}"
    return Measured(
        plan["strategy"],
        wrong,
        times.seconds,
        plan["seconds"],
        times.slow_bytes,
        planning_seconds,
    )


def measure_seed(seed: int) -> Json:
    """The case of a seed: bounds, and every strategy's plan."""
    case = random_case(Seeded(seed))
    network = Network(case.cluster)
    boxes = case.boxes(case.source), case.boxes(case.target)
    return {
        "seed": seed,
        "case": case.as_text(),
        "least_seconds": least_seconds(network, *boxes, case.item_bytes),
        "least_seconds_any": least_seconds(network, *boxes, case.item_bytes, least_slow=False),
        "least_slow_bytes": least_slow_bytes(network, *boxes, case.item_bytes),
        "plans": {name: vars(measure(case, name, network)) for name in STRATEGIES},
    }


def ratio_of(row: Json, bound: str = "least_seconds") -> float:
    """Seconds of the chosen plan by the bound; 1 where nothing has to move.

    The bound is that of plans that bring the least bytes from host to host, as ours do, or with
    `"least_seconds_any"` that of all plans.
    """
    least = row[bound]
    return row["plans"]["auto"]["seconds"] / least if least else 1.0


def is_least_slow(row: Json) -> bool:
    return abs(row["plans"]["auto"]["slow_bytes"] - row["least_slow_bytes"]) < 0.5


def _rivals(row: Json) -> list[Json]:
    """Plans that bring no more bytes from host to host than the chosen one."""
    most = row["plans"]["auto"]["slow_bytes"] + 0.5
    return [plan for plan in row["plans"].values() if plan["slow_bytes"] <= most]


def behind_by(row: Json) -> float:
    """Seconds of the chosen plan by those of the fastest rival, as simulated."""
    fastest = min(plan["seconds"] for plan in _rivals(row))
    return row["plans"]["auto"]["seconds"] / fastest if fastest else 1.0


def is_foreseen_behind(row: Json) -> bool:
    """Whether the compiler itself foresees a rival to be faster."""
    chosen = row["plans"]["auto"]["foreseen_seconds"]
    return any(plan["foreseen_seconds"] < chosen for plan in _rivals(row))


def quantiles(values: Sequence[float]) -> Json:
    """Median, 90, 95 and 99 percent, and the most."""
    rising = sorted(values)
    at = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        name: rising[min(len(rising) - 1, int(part * len(rising)))] for name, part in at.items()
    }


def summary(rows: Sequence[Json]) -> Json:
    """The figures of all cases."""
    plans = [plan for row in rows for plan in row["plans"].values()]
    ratios = [ratio_of(row) for row in rows]
    moving = [ratio for row, ratio in zip(rows, ratios, strict=True) if row["least_seconds"]]
    auto = [row["plans"]["auto"] for row in rows]
    behind = {row["seed"]: ratio for row in rows if (ratio := behind_by(row)) > 1.001}
    return {
        "cases": len(rows),
        "moving": len(moving),
        "right_bytes": sum(not any(p["wrong"] for p in row["plans"].values()) for row in rows),
        "plans": len(plans),
        "least_slow_bytes": sum(map(is_least_slow, rows)),
        "near_bound": sum(ratio <= NEAR_BOUND for ratio in ratios),
        "near_bound_of_any": sum(ratio_of(r, "least_seconds_any") <= NEAR_BOUND for r in rows),
        "near_bound_moving": sum(ratio <= NEAR_BOUND for ratio in moving),
        "seconds_by_bound": quantiles(moving),
        "behind_another_strategy": behind,
        "foreseen_behind": sum(map(is_foreseen_behind, rows)),
        "foreseen_by_simulated": {
            "least": min(p["foreseen_seconds"] / p["seconds"] for p in auto if p["seconds"]),
            **quantiles([p["foreseen_seconds"] / p["seconds"] for p in auto if p["seconds"]]),
        },
        "planning_seconds": {
            "mean": statistics.fmean(p["planning_seconds"] for p in auto),
            **quantiles([p["planning_seconds"] for p in auto]),
        },
        "chosen": {
            name: sum(p["chosen"] == name for p in auto)
            for name in sorted({p["chosen"] for p in auto})
        },
    }


def run_random(cases: int, first: int, jobs: int) -> list[Json]:
    """The cases of so many seeds."""
    seeds = range(first, first + cases)
    if jobs == 1:
        return [measure_seed(seed) for seed in seeds]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(measure_seed, seeds, chunksize=10))


def _percent(count: int, total: int) -> str:
    return f"{count}/{total} ({100 * count / total:.2f} %)"


def print_summary(found: Json) -> None:
    cases, moving = found["cases"], found["moving"]
    spread = found["seconds_by_bound"]
    print(f"right bytes, all strategies      {_percent(found['right_bytes'], cases)}")
    print(f"slow-link bytes equal to bound   {_percent(found['least_slow_bytes'], cases)}")
    print(f"within 10 % of bandwidth bound   {_percent(found['near_bound'], cases)}")
    print(f"  of those in which bytes move   {_percent(found['near_bound_moving'], moving)}")
    print("  seconds / bound                " + _spread(spread))
    print(f"  of the bound of any plan       {_percent(found['near_bound_of_any'], cases)}")
    behind = found["behind_another_strategy"]
    most = max(behind.values(), default=1.0)
    print(f"slower than another strategy     {len(behind)}, at most {most:.3f} times")
    print(f"  and foreseen to be             {found['foreseen_behind']}")
    print("foreseen / simulated seconds     " + _spread(found["foreseen_by_simulated"]))
    times = {name: 1e3 * value for name, value in found["planning_seconds"].items()}
    print("planning ms                      " + _spread(times))
    print("chosen                           " + str(found["chosen"]))


def _spread(values: Json) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in values.items())


def print_table(rows: Sequence[Json]) -> None:
    """Milliseconds, and MiB from host to host, of strategies on published transfers."""
    for table in dict.fromkeys(row["table"] for row in rows):
        heads = "".join(f"{name:>17}" for name in STRATEGIES)
        print(f"\n{table:<52}{'times':>6}{heads}{'bound':>9}{'x naive':>9}")
        for row in [row for row in rows if row["table"] == table]:
            cells = "".join(
                f"{1e3 * row[name]['seconds']:>9.1f}{row[name]['slow_bytes'] / 2**20:>8.0f}"
                for name in STRATEGIES
            )
            faster = row["naive"]["seconds"] / row["auto"]["seconds"]
            print(
                f"{row['transfer']:<52}{row['times']:>6}{cells}{1e3 * row['least_seconds']:>9.1f}"
                f"{faster:>9.2f}"
            )


def print_totals(found: Sequence[Json], steps: Mapping[str, Json]) -> None:
    """For each pipeline how much faster than naive its transfers and its step are."""
    for total in found:
        name = total["table"]
        step = steps[name]
        print(f"\n{name}")
        print(f"{'':<18}{'transfers s':>12}{'x naive':>9}{'step s':>9}{'x naive':>9}")
        for way in (*STRATEGIES, "none"):
            seconds = total.get(way, 0.0)
            faster = f"{total['naive'] / seconds:>9.2f}" if seconds else f"{'':>9}"
            print(
                f"{way:<18}{seconds:>12.2f}{faster}{step[way]:>9.2f}"
                f"{step['naive'] / step[way]:>9.3f}"
            )


def measure_rows(named: Sequence[tables.Transfer]) -> list[Json]:
    """Every strategy on published transfers."""
    rows: list[Json] = []
    for transfer in named:
        case = transfer.case
        network = Network(case.cluster)
        boxes = case.boxes(case.source), case.boxes(case.target)
        row: Json = {
            "table": transfer.table,
            "transfer": transfer.name,
            "times": transfer.times,
            "least_seconds": least_seconds(network, *boxes, case.item_bytes),
        }
        for name in STRATEGIES:
            found = measure(case, name, network)
            if found.wrong:
                raise SystemExit(f"{transfer.name}, {name}: {found.wrong}")
            row[name] = {"seconds": found.seconds, "slow_bytes": found.slow_bytes}
        rows.append(row)
    return rows


def totals(rows: Sequence[Json]) -> list[Json]:
    """Of each pipeline all transfers of a step, and how much faster than naive they are."""
    found: list[Json] = []
    for table in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == table]
        if table == tables.MICRO_TABLE:  # No transfers of one step.
            continue
        seconds = {
            name: sum(row["times"] * row[name]["seconds"] for row in own) for name in STRATEGIES
        }
        bound = sum(row["times"] * row["least_seconds"] for row in own)
        found.append(
            {
                "table": table,
                **{name: value for name, value in seconds.items()},
                "bound": bound,
                "naive_by_local_allgather": seconds["naive"] / seconds["local-allgather"],
                "naive_by_auto": seconds["naive"] / seconds["auto"],
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000, help="random transfers; default: 2000")
    parser.add_argument("--first", type=int, default=0, help="first seed; default: 0")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="default: all")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list so many cases")
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    given = parser.parse_args(arguments)
    if given.cases < 1 or given.jobs < 1:
        parser.error("--cases and --jobs must be at least 1")
    result: Json = {}
    if "random" in given.tables:
        start = time.perf_counter()
        rows = run_random(given.cases, given.first, given.jobs)
        worst = sorted(rows, key=ratio_of, reverse=True)[: given.worst]
        wrong = [row for row in rows if not is_least_slow(row)]
        wrong += [row for row in rows if any(p["wrong"] for p in row["plans"].values())]
        result["random"] = {**summary(rows), "seconds": time.perf_counter() - start}
        if not given.json:
            print_summary(result["random"])
            for row in worst:
                print(f"{ratio_of(row):.3f} x bound, seed {row['seed']}: {row['case']}")
        result["random"]["worst"] = worst
        for row in wrong[:10]:
            print(f"wrong: seed {row['seed']}: {row['case']}: {row['plans']}", file=sys.stderr)
    published = list(tables.micro()) if "micro" in given.tables else []
    steps: dict[str, Json] = {}
    if "wresnet" in given.tables:
        for name, plan in tables.wide_resnets():
            published += tables.of_plan(name, plan)
            ways = (*STRATEGIES, "none")
            steps[name] = {way: tables.step_seconds(plan, way) for way in ways}
    if published:
        rows = measure_rows(published)
        together = totals(rows)
        result["published"] = {"transfers": rows, "totals": together, "step_seconds": steps}
        if not given.json:
            print_table(rows)
            print_totals(together, steps)
    if given.json:
        print(json.dumps(result))
    failed = "random" in result and (
        result["random"]["right_bytes"] < given.cases
        or result["random"]["least_slow_bytes"] < given.cases
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
