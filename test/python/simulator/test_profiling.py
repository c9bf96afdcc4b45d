"""Measured profiles: what is measured, how it is written, and that the compiler reads it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from alpa_mlir import cli
from alpa_mlir.cluster import Cluster, profiling
from alpa_mlir.cluster.profiling import GroupTable, Profile, Table
from source_paths import PYTHONPATH


@pytest.fixture(scope="module")
def measured() -> Profile:
    seen: list[tuple[int, int, str]] = []
    profile = profiling.measure(
        devices=jax.devices()[:3],
        dtypes=("float32", "no_such_dtype"),
        longest_seconds=1e-6,
        progress=lambda done, total, label: seen.append((done, total, label)),
    )
    assert [done for done, _, _ in seen] == list(range(1, seen[0][1] + 1))
    return profile


def test_every_table_has_rising_sizes_and_seconds_that_never_fall(measured: Profile) -> None:
    tables = [*measured.matmul.values(), measured.memory]
    tables += [group.table for group in measured.collectives]
    for table in tables:
        assert list(table.sizes) == sorted(set(table.sizes))
        assert list(table.seconds) == sorted(table.seconds)
        assert min(table.seconds) > 0


def test_every_collective_is_measured_for_every_group(measured: Profile) -> None:
    found = {(group.collective, group.devices) for group in measured.collectives}
    assert found == {(name, size) for name in profiling.COLLECTIVES for size in (2, 3)}
    assert list(measured.matmul) == ["float32"]  # The other one does not exist.


def test_the_compiler_reads_what_is_written(measured: Profile, tmp_path: Path) -> None:
    (tmp_path / "measured.yaml").write_text(measured.as_text())
    cluster = measured.to_cluster(hosts=1, devices=3, memory_bytes=2**30, name="here")
    fields: dict[str, Any] = json.loads(cluster.text)
    assert fields["profile"]["device_types"].keys() == {measured.device_type}
    fields["profile"] = "measured.yaml"
    (tmp_path / "cluster.yaml").write_text(json.dumps(fields))
    again = json.loads(Cluster.load(tmp_path / "cluster.yaml").text)
    assert len(again["profile"]["collectives"]) == len(measured.collectives)
    assert again["links"]["intra_host"] == measured.link(between_hosts=False)


def test_groups_between_hosts_name_their_link_and_devices_a_host() -> None:
    table = Table((1e3, 1e6), (2e-5, 1.02e-3))
    groups = (
        GroupTable("collective_permute", 2, 2, Table((1e3, 1e6), (1e-6, 1.1e-5))),
        GroupTable("collective_permute", 2, 1, table),
        GroupTable("all_reduce", 4, 2, table),
    )
    profile = Profile("gpu", {"float32": Table((1e9,), (1e-3,))}, Table((1e6,), (1e-3,)), groups)
    inside, across, both = profile.to_dict()["collectives"]
    assert (inside["link"], "devices_per_host" in inside) == ("intra_host", False)
    assert (across["link"], across["devices_per_host"]) == ("inter_host", 1)
    assert (both["devices"], both["devices_per_host"]) == (4, 2)
    assert profile.link(between_hosts=True) == {
        "bandwidth": pytest.approx(1e9),
        "latency": 2e-5,
    }
    assert profile.link(between_hosts=False) == {
        "bandwidth": pytest.approx(1e11),
        "latency": 1e-6,
    }
    Cluster.from_yaml(profile.to_cluster(2, 2, 2**30, "two hosts").text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "--longest", "0"],
        ["profile", "--output", "/no/such/folder/file.yaml"],
        ["profile", "--virtual-devices", "0"],
        ["nothing"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_half_a_world_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--process", "0"]) == 1
    assert "belong together" in capsys.readouterr().err


def test_a_plan_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "/no/such/plan"]) == 1
    assert "cannot read the plan" in capsys.readouterr().err


@pytest.mark.slow
def test_two_hosts_measure_their_link(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}

    def start(process: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "alpa_mlir", "profile", "-q", "--virtual-devices", "2"]
        command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2"]
        command += ["--process", str(process), "--longest", "1e-3", "--dtypes", "float32"]
        command += ["-o", str(tmp_path / "p.yaml"), "--cluster-output", str(tmp_path / "c.yaml")]
        return subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    processes = [start(0), start(1)]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    cluster = Cluster.load(tmp_path / "c.yaml")
    assert cluster.devices_per_host == (2, 2)
    groups = json.loads(cluster.text)["profile"]["collectives"]
    assert {(g["link"], g["devices"], g["devices_per_host"]) for g in groups} == {
        ("intra_host", 2, 2),
        ("inter_host", 2, 1),
        ("inter_host", 4, 2),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtypes", "float33"], "invalid choice: 'float33'"),
        (["--virtual-devices", "two"], "'two' is no whole number"),
        (["--virtual-devices", "0"], "0 is not 1 or more"),
        (["--longest", "soon"], "'soon' is no number"),
        (["--longest", "nan"], "nan is not a positive number"),
    ],
)
def test_wrong_options_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(["profile", *arguments])
    assert message in capsys.readouterr().err
