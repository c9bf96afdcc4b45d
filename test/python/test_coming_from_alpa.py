"""Every row of docs/coming-from-alpa.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import alpa_mlir
import pytest
from alpa_rows import ROWS, methods, options, session, steps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-alpa.md"
TABLE = {
    name: (here.strip(), difference.strip())
    for name, here, difference in re.findall(
        r"^\| `([^`]+)` \|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE
    )
}
ROOMS = (methods, options, session, steps)
# What `from alpa import *` of its last version, 1.0.0.dev0, gives besides modules.
EXPORTS = [
    "init",
    "shutdown",
    "parallelize",
    "grad",
    "value_and_grad",
    "clear_executable_cache",
    "DataLoader",
    "MeshDriverDataLoader",
    "DeviceCluster",
    "PhysicalDeviceMesh",
    "LocalPhysicalDeviceMesh",
    "DistributedPhysicalDeviceMesh",
    "DistributedArray",
    "prefetch",
    "get_global_cluster",
    "get_global_physical_mesh",
    "get_global_virtual_physical_mesh",
    "set_global_virtual_physical_mesh",
    "set_seed",
    "get_global_num_devices",
    "global_config",
    "ProfilingResultDatabase",
    "ShardParallel",
    "DataParallel",
    "Zero2Parallel",
    "Zero3Parallel",
    "PipeshardParallel",
    "CreateStateParallel",
    "FollowParallel",
    "get_3d_parallel_method",
    "plan_to_method",
    "mark_pipeline_boundary",
    "manual_remat",
    "automatic_remat",
    "ManualLayerOption",
    "AutoLayerOption",
    "ManualStageOption",
    "AutoStageOption",
    "UniformStageOption",
    "AutoShardingOption",
    "ManualShardingOption",
    "save_checkpoint",
    "restore_checkpoint",
    "timers",
    "__version__",
]


def test_the_table_has_every_name():
    assert set(EXPORTS) <= set(TABLE)
    same = {name for name, (here, _) in TABLE.items() if here == "="}
    assert {name for name in same if "." not in name} <= {*alpa_mlir.__all__, "__version__"}
    assert set(alpa_mlir._INSTEAD) == {
        n for n in (*EXPORTS, "collective") if not hasattr(alpa_mlir, n)
    }


def test_no_test_is_without_a_row():
    assert {test.__module__ for test in ROWS.values()} == {room.__name__ for room in ROOMS}
    assert set(ROWS) <= set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_row(name):
    here, _ = TABLE[name]
    if name in alpa_mlir._INSTEAD:
        with pytest.raises(AttributeError, match="; use "):
            getattr(alpa_mlir, name)
    assert here
    ROWS[name]()


@pytest.fixture(autouse=True)
def _no_session():
    yield
    if alpa_mlir.session.current_session() is not None:
        alpa_mlir.shutdown()
