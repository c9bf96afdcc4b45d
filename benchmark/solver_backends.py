"""The same problems by the built-in solver and by HiGHS: time and objective side by side.

Problems: training steps of the test zoo and a GPT of 4 layers, as the compiler states them for a
mesh of 8 devices, and random chains with residual connections and grids; each without a memory
limit and with one halfway between the least that has an answer and the least that costs nothing.
Instance G of the IOPDDL contest where it is at hand; problem files can be given too. One thread
each, the same time limit, reading the file included.

Run: python benchmark/solver_backends.py [problem or FILE ...] [--time-limit S] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
from alpa_mlir.compiler import Module
from alpa_mlir.solver import ProblemSolution, solve_problem
from alpa_mlir.trace.tracing import trace
from models import gpt, zoo

_jax: Any = jax
Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
TOOL = Path(os.environ.get("ALPA_BUILD", ROOT / "build"), "bin", "alpa-opt")
CONTEST_G = ROOT.parent / "shared" / "reference" / "iopddl" / "asplos-2025-iopddl-G.json.gz"
ZOO = ("mlp", "moe", "wide_resnet", "unet", "vit", "lstm")


# A problem with a memory limit in bytes, or without.
Maker = Callable[[int | None], Json]


def of_step(step: Callable[..., Any], state: Any, batch: Any, name: str) -> Maker:
    """The problem of a training step on a 2x4 mesh of a small cluster."""
    traced = trace(step, state, batch)
    module = Module(traced.text, name).annotate(traced.signature.to_json()).run("alpa-import")
    text = module.as_text()

    def make(limit: int | None) -> Json:
        options = f"cluster=cpu-test mesh-shape=2,4 memory-limit={limit or -1} output=-"
        done = subprocess.run(
            [TOOL, "-", f"-alpa-build-sharding-problem={options}", "-o", os.devnull],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return make


def of_zoo(name: str) -> Maker:
    """The problem of a zoo entry."""
    model = zoo.get(name)
    state, batch = _jax.eval_shape(model.init)
    return of_step(model.step, state, batch, name)


def of_gpt(layers: int) -> Maker:
    """The problem of a GPT."""
    model = gpt(layers)
    return of_step(model.step, model.state, model.batch, model.name)


def made_up(count: int, choices: int, edges: list[tuple[int, int]]) -> Maker:
    """Random costs up to 10^6, forbidden pairs, lives of up to 8 moments."""
    rng = random.Random(count)
    sizes = [rng.randint(2, choices) for _ in range(count)]

    def cost() -> int:
        return 10**18 if rng.random() < 0.02 else rng.randint(0, 10**6)

    problem: Json = {
        "name": "random",
        "nodes": {
            "intervals": [[i, i + rng.randint(1, 8)] for i in range(count)],
            "costs": [[rng.randint(0, 10**6) for _ in range(size)] for size in sizes],
            "usages": [[rng.randint(1, 100) for _ in range(size)] for size in sizes],
        },
        "edges": {
            "nodes": [list(edge) for edge in edges],
            "costs": [[cost() for _ in range(sizes[a] * sizes[b])] for a, b in edges],
        },
    }
    return lambda limit: {"problem": problem | ({"usage_limit": limit} if limit else {})}


def chain(count: int) -> Maker:
    """A deep network: a chain with skip connections over three and six nodes."""
    edges = [(i - 1, i) for i in range(1, count)]
    edges += [(i - 6, i) for i in range(6, count, 6)] + [(i - 3, i) for i in range(4, count, 4)]
    return made_up(count, 8, edges)


def grid(side: int) -> Maker:
    """Each node has up to four neighbours."""
    across = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    return made_up(side * side, 6, across + [(i, i + side) for i in range(side * (side - 1))])


PROBLEMS: dict[str, Callable[[], Maker]] = {
    **{name: partial(of_zoo, name) for name in ZOO},
    "gpt-4": partial(of_gpt, 4),
    "chain-100": partial(chain, 100),
    "chain-400": partial(chain, 400),
    "grid-8": partial(grid, 8),
}


def halfway(make: Maker) -> int | None:
    """A limit that binds but leaves answers; none if there is no such limit."""
    free = solve_problem(make(None), time_limit_seconds=20).cost

    def least(enough: Callable[[ProblemSolution], bool], gap: float) -> int:
        low, high = 1, 1 << 40
        while high - low > 1 + high // 100:
            middle = math.isqrt(low * high) if high > 2 * low else (low + high) // 2
            found = solve_problem(make(middle), time_limit_seconds=5, gap=gap)
            low, high = (low, middle) if enough(found) else (middle, high)
        return high

    feasible = least(lambda found: found.cost is not None, gap=1.0)
    costless = least(lambda found: found.cost == free, gap=0.0)
    limit = (feasible + costless) // 2
    return limit if feasible < limit < costless else None


def finishes(answer: Json) -> bool:
    """Whether a proof ended the search, up to what a solver in doubles can tell."""
    if answer["cost"] is None:
        return answer["status"] == "infeasible"
    return answer["cost"] - answer["lower_bound"] <= 1e-6 * answer["cost"]


def compare(name: str, problem: Json | Path, time_limit: float) -> Json:
    """One row: what both solvers found."""
    if isinstance(problem, Path):
        path = problem
    else:
        path = Path(tempfile.mkdtemp(), "problem.json")
        path.write_text(json.dumps(problem))
    row: Json = {"problem": Path(name).name.split(".")[0]}
    for method in ("built-in", "highs"):
        found = solve_problem(path, method=method, time_limit_seconds=time_limit)
        row["nodes"] = len(found.choices)
        row[method] = {
            "seconds": found.seconds,
            "cost": found.cost,
            "lower_bound": found.lower_bound,
            "status": found.status,
        }
    if not isinstance(problem, Path):
        path.unlink()
        path.parent.rmdir()
    ours, theirs = row["built-in"], row["highs"]
    row["speed_up"] = theirs["seconds"] / ours["seconds"]
    row["both_finish"] = finishes(ours) and finishes(theirs)
    row["worse"] = theirs["cost"] is not None and (
        ours["cost"] is None or ours["cost"] > theirs["cost"]
    )
    return row


def show(row: Json) -> None:
    """One line of the table."""
    line = f"{row['problem']:<22}{row['nodes']:>7}"
    for method in ("built-in", "highs"):
        answer = row[method]
        cost = "none" if answer["cost"] is None else f"{answer['cost']:,}"
        line += f"{answer['seconds']:>10.3f}{cost:>21}{answer['status']:>11}"
    print(f"{line}{row['speed_up']:>10.1f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the wanted problems and print the table, or JSON."""
    names = [*PROBLEMS, *([str(CONTEST_G)] if CONTEST_G.exists() else [])]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "problems", nargs="*", default=names, help=f"of {', '.join(PROBLEMS)}, or a file"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds; default: 60")
    parser.add_argument("--json", action="store_true", help="one object a row, for machines")
    options = parser.parse_args(arguments)
    for name in options.problems:
        if name not in PROBLEMS and not Path(name).exists():
            parser.error(f"no problem or file {name!r}; problems: {', '.join(PROBLEMS)}")
    alpa_mlir.use_virtual_devices(8)

    def emit(row: Json) -> None:
        print(json.dumps(row), flush=True) if options.json else show(row)

    if not options.json:
        print(
            f"{'problem':<22}{'nodes':>7}"
            + "".join(
                f"{name + ' s':>10}{'cost':>21}{'status':>11}" for name in ("built-in", "HiGHS")
            )
            + f"{'speed-up':>10}"
        )
    rows: list[Json] = []
    for name in options.problems:
        if name not in PROBLEMS:
            rows.append(compare(name, Path(name), options.time_limit))
            emit(rows[-1])
            continue
        make = PROBLEMS[name]()
        rows.append(compare(name, make(None), options.time_limit))
        emit(rows[-1])
        limit = halfway(make)
        if limit is not None:
            rows.append(compare(f"{name}, limited", make(limit), options.time_limit))
            emit(rows[-1])
    if not options.json:
        worse = [row["problem"] for row in rows if row["worse"]]
        both = [row for row in rows if row["both_finish"]]
        print(f"built-in worse: {', '.join(worse) or 'never'}")
        if both:
            least = min(both, key=lambda row: row["speed_up"])
            print(
                f"both finish in {len(both)} of {len(rows)}; the built-in one is at least "
                f"{least['speed_up']:.1f} times faster there ({least['problem']})"
            )


if __name__ == "__main__":
    main()
