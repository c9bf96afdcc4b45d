"""The search over micro-batches, the plans kept on disk, and what an error proposes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import InfeasiblePlanError, MicroBatchError
from alpa_mlir.search.plan_cache import PlanCache
from alpa_mlir.search.planner import climb, nearest
from source_paths import PYTHONPATH
from test_equality import CLUSTER, relative_difference


def mlp_step(w, x):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value


def mlp(hidden=32, rows=8):
    w = {"a": jnp.ones((16, hidden)) * 0.1, "b": jnp.ones((hidden, 4)) * 0.1}
    return w, jax.random.normal(jax.random.key(0), (rows, 16))


def cluster(memory="2GiB", hosts=1, devices=2):
    fields = json.loads(json.dumps(CLUSTER))
    fields["device_types"]["small"]["memory_bytes"] = memory
    fields["hosts"].update(count=hosts, devices=devices)
    return fields


def planned(method, step=mlp_step, args=None, where=None, **options):
    function = alpa_mlir.parallelize(step, cluster=where or cluster(), method=method)
    return function.trace(*(args or mlp())).plan(**options)


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def test_the_search_finds_the_best_count(name):
    """No single count, planned by itself, is faster than what the search took."""
    model = zoo.get(name)
    state, batch = jax.eval_shape(model.init)
    found = planned(AutoParallel(), model.step, (state, batch), CLUSTER, cache=False)
    seconds = {
        n: planned(
            AutoParallel(num_micro_batches=n), model.step, (state, batch), CLUSTER, cache=False
        ).predicted_seconds
        for n in (1, 2, 4, 8)
    }
    assert found.predicted_seconds <= 1.05 * min(seconds.values())
    assert found.predicted_seconds == pytest.approx(seconds[found.plan.num_micro_batches], rel=0.02)
    assert any(t.exact and t.seconds == found.predicted_seconds for t in found.tried)


def test_the_table_of_what_was_tried():
    said = []
    found = planned(AutoParallel(), cache=False, progress=lambda *what: said.append(what))
    text = found.as_text()
    for tried in found.tried:
        assert tried.as_text() in text
    assert re.search(r"tried:\n  1 micro-batch: (about )?[\d.]+ [um]?s in 1 stage", text)
    done, total, label = said[-1]
    assert (done == total, label) == (True, "planned")
    assert [d for d, _, _ in said] == sorted(d for d, _, _ in said)
    assert any("micro-batch" in label for _, _, label in said)


def contrastive(y):
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(y @ y.T)))


def mlp_step_with(loss_of, inner=lambda h: h):
    def step(w, x):
        def loss(w):
            return loss_of(jnp.tanh(inner(x @ w["a"])) @ w["b"])

        value, gradient = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value

    return step


def test_a_pipeline_with_a_barrier():
    """Examples are told apart from all others, between the forward and the backward runs."""
    args = mlp(hidden=2048, rows=512)
    method = AutoParallel(pipeline="inter-only", layers=2)
    found = planned(method, mlp_step_with(contrastive), args, cache=False)
    assert found.plan.num_micro_batches > 1
    assert found.plan.exactness.barriers
    assert found.plan.schedule == "gpipe"
    assert "barrier" in found.plan.stages[-1].functions


def test_a_step_that_needs_its_whole_batch():
    """Its layers need statistics of all examples: one micro-batch, though a pipeline of several
    would be faster."""
    step = mlp_step_with(contrastive, lambda h: (h - h.mean(0)) / h.std(0))
    args = mlp(hidden=2048, rows=512)
    method = AutoParallel(pipeline="inter-only", layers=2)
    assert planned(method, args=args, cache=False).plan.num_micro_batches > 1
    found = planned(method, step, args, cache=False)
    assert found.plan.num_micro_batches == 1
    refused = [tried for tried in found.tried if tried.num_micro_batches > 1]
    assert refused
    assert all("couples examples" in tried.reason for tried in refused)
    with pytest.raises(MicroBatchError, match=r"couples examples, and 4 micro-batches would give"):
        planned(dataclasses.replace(method, num_micro_batches=4), step, args, cache=False)


def test_counts_of_another_size_run():
    w, x = mlp(rows=12)
    step = alpa_mlir.compile(
        mlp_step, w, x, cluster=cluster(), method=AutoParallel(num_micro_batches=(3, 6))
    )
    assert step.plan.num_micro_batches in (3, 6)
    assert relative_difference(step(w, x), jax.jit(mlp_step)(w, x)) < 1e-5


def test_counts_of_another_size_run_where_memory_is_short():
    """Then each stage may compute its layers again."""
    w, x = mlp()
    method = AutoParallel(num_micro_batches=(1, 2))
    found = planned(method, where=cluster(memory="12KiB"), cache=False)
    assert found.plan.num_micro_batches == 1
    assert {t.remat for t in found.tried} == {"auto"}
    assert relative_difference(found.load()(w, x), jax.jit(mlp_step)(w, x)) < 1e-5


def test_a_step_is_traced_once():
    """Whatever the number of micro-batches."""
    traces = []

    def step(w, x):
        traces.append(x.shape)
        return mlp_step(w, x)

    found = planned(AutoParallel(), step, cache=False)
    assert len({tried.num_micro_batches for tried in found.tried}) > 2
    assert set(traces) == {(8, 16)}
    assert len(traces) == 1


def test_state_with_a_batch_dimension():
    """A cache of keys and values, one row for each example."""
    model = zoo.get("kv_cache")
    state, batch = model.init()
    expected = jax.jit(model.step)(state, batch)
    for count in (1, 2, None):
        method = AutoParallel(num_micro_batches=count)
        found = planned(method, model.step, (state, batch), CLUSTER)
        assert found.plan.num_micro_batches == (count or 1)
        assert relative_difference(found.load()(state, batch), expected) < 1e-5


def test_the_first_count():
    assert nearest((1, 2, 8), 4) == 2
    assert nearest((1, 2, 4, 8), 128) == 8
    assert nearest((3, 8), 0.5) == 3


def test_the_ladder_of_counts():
    asked = []

    def worth(count):
        asked.append(count)
        return abs(count - 24)

    counts = tuple(n for n in range(1, 97) if 96 % n == 0)
    assert climb(counts, 2, worth) == 24
    assert len(set(asked)) < len(counts)
    assert climb(counts, 2, lambda n: float("inf")) is None
    # What does not fit with few micro-batches may fit with more, or with fewer.
    for wanted in (1, 96):
        assert climb(counts, 8, lambda n, w=wanted: 0.0 if n == w else float("inf")) == wanted
    # One that is hardly slower may lie before one that is faster.
    seconds = {1: 9.0, 2: 5.0, 4: 8.05, 8: 8.0, 16: 9.0}
    assert climb(tuple(seconds), 8, seconds.__getitem__) == 2
    assert climb(tuple(seconds), 8, (seconds | {4: 8.1}).__getitem__) == 8


# -- plans on disk ----------------------------------------------------------------------------


def plans_in(folder):
    """The entries, without the folder of solved stages."""
    return [path for path in folder.iterdir() if (path / "record.json").exists()]


@pytest.fixture
def kept(tmp_path):
    """Plans with a cache of its own; whether a plan was found says the absence of a search."""

    def plan(method=None, step=mlp_step, args=None, where=None):
        said = []
        made = planned(
            method or AutoParallel(),
            step,
            args,
            where,
            cache=tmp_path,
            progress=lambda *what: said.append(what),
        )
        return made, not said

    return plan


def test_a_plan_is_found_again(kept):
    first, hit = kept()
    assert not hit
    again, hit = kept()
    assert hit
    assert again.plan == first.plan
    assert again.tried == first.tried
    assert again.traced.signature == first.traced.signature
    w, x = mlp()
    assert relative_difference(again.load()(w, x), jax.jit(mlp_step)(w, x)) < 1e-5
    assert "stablehlo" in again.traced.as_text()


def test_the_same_step_on_other_lines_is_found(kept):
    source = "import jax\ndef step(w, x):\n  return w - jax.grad(lambda w: (x @ w).mean())(w)\n"
    steps = []
    for lines in ("", "\n\n\n"):
        scope = {}
        exec(compile(lines + source, f"<step{len(lines)}>", "exec"), scope)
        steps.append(scope["step"])
    args = (jnp.ones((4, 4)), jnp.ones((8, 4)))
    assert [kept(step=step, args=args)[1] for step in steps] == [False, True]


def test_whatever_changes_misses(kept, monkeypatch):
    kept()
    changed = {
        "model": {"step": lambda w, x: mlp_step(w, 2 * x)},
        "shapes": {"args": mlp(hidden=48)},
        "cluster": {"where": cluster(devices=1)},
        "method": {"method": AutoParallel(memory_fraction=0.8)},
        "kind of method": {"method": ShardParallel(num_micro_batches=2)},
    }
    for what, options in changed.items():
        assert not kept(**options)[1], what
        assert kept(**options)[1], what
    monkeypatch.setattr("alpa_mlir.search.planner.code_version", lambda: "another")
    assert not kept()[1]


def test_damaged_entries_are_made_again(kept, tmp_path):
    first, _ = kept()
    (entry,) = plans_in(tmp_path)
    for damage in ("plan.json", "record.json", "stage_0.mlir"):
        text = (entry / damage).read_text()
        (entry / damage).write_text(text[: len(text) // 2])
        with pytest.warns(UserWarning, match="is not used and is made again"):
            again, hit = kept()
        assert not hit
        assert again.plan.programs == first.plan.programs
        assert kept()[1]


@pytest.mark.parametrize("name", [".", "plan.json"])
def test_entries_that_others_may_write_are_made_again(kept, tmp_path, name):
    kept()
    (entry,) = plans_in(tmp_path)
    assert stat.S_IMODE((entry / name).stat().st_mode) & 0o077 == 0
    (entry / name).chmod(0o770)
    with pytest.warns(UserWarning, match=r"group .* may write to it.*chmod go-w"):
        assert not kept()[1]
    assert kept()[1]


def test_solved_stages_that_others_may_write_are_not_used(tmp_path):
    cache = PlanCache(tmp_path)
    folder = cache.solved_folder()
    assert folder is not None
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="solved stages .* are not used: every user may write"):
        assert cache.solved_folder() is None


def test_remains_of_an_entry_are_replaced(kept, tmp_path):
    kept()
    (entry,) = plans_in(tmp_path)
    (entry / "record.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kept()[1]
    assert kept()[1]


def test_a_kept_plan_is_called_like_the_step_at_hand(tmp_path):
    """Equal modules with other containers, static values and options."""

    def step(w, flag, x):
        return type(w)(v - 0.1 * g for v, g in zip(w, jax.grad(loss)(w, x), strict=True))

    def loss(w, x):
        return jnp.mean((x @ w[0] @ w[1]) ** 2)

    x = jnp.ones((4, 4))
    for i, (kind, flag, donate) in enumerate([(list, "a", True), (tuple, "b", False)]):
        w = kind([x, x])
        function = alpa_mlir.parallelize(
            step,
            cluster=cluster(),
            method=ShardParallel(),
            static_argnums=1,
            donate_state=donate,
            cache=tmp_path / "cache",
        )
        loaded = alpa_mlir.load(function.plan(w, flag, x).save(tmp_path / str(i)))
        assert loaded.plan.call.donate_state is donate
        assert type(loaded(w, flag, x)) is kind
    assert len(plans_in(tmp_path / "cache")) == 1


def test_the_bound(tmp_path):
    found = planned(AutoParallel(num_micro_batches=1), cache=False)
    cache = PlanCache(tmp_path)
    for i, name in enumerate("abc"):
        cache.put(name, found.plan)
        os.utime(tmp_path / name / "record.json", (i, i))
    assert cache.get("a") is not None  # Used last from now on.
    size = sum(p.stat().st_size for p in (tmp_path / "a").iterdir())
    PlanCache(tmp_path, most_bytes=int(2.5 * size)).put("d", found.plan)
    assert sorted(p.name for p in plans_in(tmp_path)) == ["a", "d"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="the plan cannot be kept"):
        planned(AutoParallel(num_micro_batches=1), cache=tmp_path / "file")


def test_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALPA_MLIR_CACHE", str(tmp_path))
    planned(AutoParallel(num_micro_batches=1), cache=False)
    assert not list(tmp_path.iterdir())
    planned(AutoParallel(num_micro_batches=1))
    assert len(plans_in(tmp_path)) == 1


def test_solved_stages_serve_other_plans(tmp_path):
    """Planning anew from what searches before have solved, in a folder with a difficult name."""
    folder = tmp_path / "all of {my} 'plans'"
    found = planned(AutoParallel(num_micro_batches=2), cache=folder)
    (entry,) = plans_in(folder)
    shutil.rmtree(entry)
    again = planned(AutoParallel(num_micro_batches=2), cache=folder)
    assert list((folder / "solved").iterdir())
    assert not found.plan.diff(again.plan)
    without = planned(AutoParallel(num_micro_batches=2), cache=False)
    assert not found.plan.diff(without.plan)


def test_another_process_finds_it(tmp_path):
    script = """
import json, sys, jax.numpy as jnp, jax, alpa_mlir
def step(w, x):
    return w - jax.grad(lambda w: (x @ w).mean())(w)
said = []
f = alpa_mlir.parallelize(step, cluster="cpu-test", method=alpa_mlir.AutoParallel())
f.trace(jnp.ones((4, 4)), jnp.ones((8, 4))).plan(progress=lambda *w: said.append(w))
print(len(said))
"""
    path = tmp_path / "step.py"
    path.write_text(script)
    environment = {**os.environ, "ALPA_MLIR_CACHE": str(tmp_path / "plans")}
    environment["PYTHONPATH"] = PYTHONPATH
    runs = [
        subprocess.run(
            [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert int(runs[0]) > 0
    assert int(runs[1]) == 0


# -- what would fit ---------------------------------------------------------------------------


def proposals(method, where, args, step=mlp_step):
    with pytest.raises(
        InfeasiblePlanError, match=r"no plan fits into memory.*of stage 0"
    ) as caught:
        planned(method, step, args, where, cache=False)
    return str(caught.value), caught.value.fix.split(" or ")


def test_proposals_fit_and_are_the_nearest():
    """Each change that is proposed makes a plan; the next smaller one does not."""
    args = jax.eval_shape(lambda: mlp(hidden=4096, rows=2048))
    where = cluster(memory="20MiB", devices=1)
    method = AutoParallel(num_micro_batches=1, remat="none", memory_fraction=1.0)
    text, found = proposals(method, where, args)
    assert "use more devices" not in text
    assert found
    for change in found:
        count = re.search(r"fits with (\d+) (micro-batches|hosts)", change)
        if count is None:
            assert change in ("fits in bfloat16", 'fits with remat="all"')
            continue
        number = int(count[1])
        for n in (number, number // 2):
            if count[2] == "hosts":
                other, bigger = method, cluster(memory="20MiB", devices=1, hosts=n)
            else:
                other, bigger = dataclasses.replace(method, num_micro_batches=n), where
            if n == number:
                assert planned(other, args=args, where=bigger, cache=False).plan.stages
            else:
                with pytest.raises(InfeasiblePlanError):
                    planned(other, args=args, where=bigger, cache=False)
    assert any("micro-batches" in change for change in found)
    assert any("hosts" in change for change in found)


def test_nothing_is_proposed_that_does_not_fit():
    """State alone is too large for any number of micro-batches, and meshes are fixed."""
    args = jax.eval_shape(lambda: mlp(hidden=65536, rows=8))
    method = PipeshardParallel(submeshes=[(1, 1)], memory_fraction=1.0)
    text, found = proposals(method, cluster(memory="2MiB", devices=1), args)
    assert found == ["make the model smaller"]
    assert "does not fit with bfloat16" in text


def test_lower_precision_is_proposed():
    args = jax.eval_shape(lambda: mlp(hidden=65536, rows=8))
    method = PipeshardParallel(submeshes=[(1, 1)], memory_fraction=1.0)
    state = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(args[0])) * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, found = proposals(method, cluster(memory=int(2.2 * state), devices=1), args)
    assert "fits in bfloat16" in found


def in_parts(count):
    """A step that takes its batch in parts, whose losses are those of equal weights."""

    def step(params, batch):
        parts = batch.reshape(count, -1, 16)

        def loss(p):
            return jax.vmap(lambda x: jnp.mean(jnp.tanh(x @ p) ** 2))(parts).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return params - 0.1 * grads, value

    return step


def test_micro_batches_that_would_do_nothing_are_refused():
    example = np.ones((16, 16), np.float32), np.ones((64, 16), np.float32)
    cluster = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)

    def plan(method):
        step = alpa_mlir.parallelize(in_parts(4), cluster=cluster, method=method, cache=False)
        return step.plan(*example).plan

    # Whole parts, or as much of each.
    for count in (4, 8):
        method = ShardParallel(num_micro_batches=count)
        assert plan(method).stages[0].predicted["forward_seconds"] > 0
    with pytest.raises(MicroBatchError, match="like all that reads the batch") as error:
        plan(ShardParallel(num_micro_batches=32))
    assert error.value.fix.endswith("4 blocks of the batch's rows: use 4 or 8 or 16 micro-batches")
    assert plan(AutoParallel()).num_micro_batches <= 16


def test_stages_beside_others_that_are_computed_again():
    """What a stage holds does not depend on whether the one before computes its values again."""

    def step(weights, batch):
        def mlp(weights, x):
            return jnp.tanh(x @ weights[0]) @ weights[1]

        fake = jax.lax.fori_loop(0, 4, lambda i, x: x - 0.1 * mlp(weights, x), batch["z"])
        value, gradients = jax.value_and_grad(
            lambda w: jnp.mean(mlp(w, batch["x"]) ** 2) - jnp.mean(mlp(w, fake) ** 2)
        )(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    weights = [shape(2048, 3072), shape(3072, 2048)]
    batch = {"x": shape(8192, 2048), "z": shape(8192, 2048)}
    method = AutoParallel(num_micro_batches=32)
    made = alpa_mlir.parallelize(step, cluster="dgx-h100", method=method, cache=False)
    plan = made.plan(weights, batch).plan
    assert len({bool(s.predicted["rematerialized_layers"]) for s in plan.stages}) == 2
