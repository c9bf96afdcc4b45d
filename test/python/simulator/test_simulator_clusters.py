"""Steps of a plan on clusters other than its own."""

from __future__ import annotations

import json

import pytest
from alpa_mlir import PipeshardParallel, cli, errors, parallelize
from alpa_mlir.simulator import simulate
from alpa_runtime.plan import Plan
from simulated import cluster, mlp


def fields(**changes):
    """A cluster of 2 hosts of 2 devices; changes by path, with __ between names."""
    described = json.loads(cluster(hosts=2, devices=2).text)
    described["hosts"] = described["hosts"][0]
    for path, value in changes.items():
        *parents, name = path.split("__")
        at = described
        for parent in parents:
            at = at.setdefault(parent, {})
        at[name] = value
    return described


@pytest.fixture(scope="module")
def two_stages() -> Plan:
    """A stage on each host."""
    step, state, batch = mlp(2, 64)
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2)
    return parallelize(step, cluster=fields(), method=method).plan(state, batch).plan


@pytest.fixture(scope="module")
def one_stage() -> Plan:
    """On both hosts."""
    step, state, batch = mlp(2, 64)
    method = PipeshardParallel(submeshes=[(2, 2)], num_micro_batches=1)
    return parallelize(step, cluster=fields(), method=method).plan(state, batch).plan


SLOW = {"bandwidth": 1e7, "latency": 1e-3}
TABLE = {"bytes": [1, 2], "seconds": [1, 2]}


@pytest.mark.parametrize(
    "change",
    [
        {"links__inter_host": SLOW},
        {"hosts__nics": 2},
        {"device_types__d__memory_bytes": 10**8},
        {"hosts__count": 3},
        {"hosts__links": {"inter_host": SLOW}},
        {
            "profile__collectives": [
                {"collective": "all_reduce", "link": "inter_host", "devices": 2, **TABLE}
            ]
        },
    ],
)
def test_what_lies_between_meshes_may_differ(two_stages, change):
    before, after = simulate(two_stages, fields()), simulate(two_stages, fields(**change))
    assert before.step_seconds == simulate(two_stages).step_seconds
    slower = "inter_host" in str(change) and "profile" not in str(change)
    assert (after.step_seconds > 1.5 * before.step_seconds) == slower
    assert [m.busy_seconds for m in after.meshes] == pytest.approx(
        [m.busy_seconds for m in before.meshes]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"device_types__d__peak_flops__float32": 2e12},
            r"stage 0 are foreseen for devices' peak_flops .* 1000.*'bench'.* 2000",
        ),
        ({"device_types__d__memory_bandwidth": 2e12}, "devices' memory_bandwidth 1.*2"),
        ({"device_types__d__efficiency": {"memory": 0.5}}, "efficiency not given.*0.5"),
        ({"links__intra_host": SLOW}, "intra_host links .* 0.001"),
        ({"hosts__links": {"intra_host": SLOW}}, "intra_host links .* 0.001"),
        ({"hosts__devices": 1, "hosts__count": 4}, r"devices on hosts 2, .* they are 1;"),
        ({"profile__device_types": {"d": {"memory": TABLE}}}, "measured operations .*memory"),
        (
            {
                "profile__collectives": [
                    {"collective": "all_reduce", "link": "intra_host", "devices": 2, **TABLE}
                ]
            },
            "measured collectives .* are .*all_reduce",
        ),
    ],
)
def test_what_prices_stages_may_not_differ(two_stages, change, message):
    with pytest.raises(errors.PlanMismatchError, match=message):
        simulate(two_stages, fields(**change))


def test_the_links_of_a_stage_on_several_hosts_may_not_differ(one_stage):
    assert simulate(one_stage, fields(hosts__nics=2)).step_seconds > 0
    with pytest.raises(errors.PlanMismatchError, match=r"inter_host links .*0\.001"):
        simulate(one_stage, fields(links__inter_host=SLOW))
    racks = {"links__inter_rack": SLOW, "racks": {"hosts": 2}}
    assert simulate(one_stage, fields(**racks)).step_seconds > 0
    with pytest.raises(errors.PlanMismatchError, match=r"hosts in racks not given, .* are 1"):
        simulate(one_stage, fields(**racks | {"racks": {"hosts": 1}}))
    with pytest.raises(errors.ClusterFileError, match="device 2 is not in a cluster of 2 devices"):
        simulate(one_stage, fields(hosts__count=1))


def test_the_command_line_takes_another_cluster(two_stages, tmp_path, capsys):
    two_stages.save(tmp_path / "plan")
    (tmp_path / "links.yaml").write_text(json.dumps(fields(links__inter_host=SLOW)))
    arguments = ["simulate", str(tmp_path / "plan"), "--cluster"]
    assert cli.main([*arguments, str(tmp_path / "links.yaml")]) == 0
    assert "step" in capsys.readouterr().out
    assert cli.main([*arguments, "dgx-a100"]) == 1
    assert "plan the step for that cluster" in capsys.readouterr().err


def test_the_command_line_names_contradictions(two_stages, tmp_path, capsys):
    path = two_stages.save(tmp_path / "plan") / "plan.json"
    path.write_text(path.read_text().replace("run 0.forward", "run 0.sideways"))
    assert cli.main(["simulate", str(path.parent)]) == 1
    assert "no function 'sideways'" in capsys.readouterr().err
