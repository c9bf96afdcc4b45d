"""What is tried out, each in a process of its own, which may crash or hang.

Run: python -m alpa_mlir.doctor.probes NAME ARGS

What is called returns facts as JSON, or raises; whatever else it prints does not count.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_runtime

ANSWER = "alpa_mlir doctor: "


@dataclass(frozen=True)
class Outcome:
    """How a probe ended.

    Attributes:
        facts: what it found; None if it failed.
        error: why it failed, in one line.
    """

    facts: Mapping[str, Any] | None
    error: str = ""


def run_probe(
    name: str, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Call a function of `alpa_mlir.doctor.probes` in another process; it leaves nothing behind.

    Args:
        seconds: it is killed after so long.
        environment: variables beside those of this process.
    """
    roots = (Path(__file__).resolve().parents[2], Path(alpa_runtime.__file__).resolve().parents[1])
    path = os.pathsep.join([*map(str, roots), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = [sys.executable, "-P", "-m", "alpa_mlir.doctor.probes", name, *arguments]
    return _outcome(program, seconds, {"PYTHONPATH": path, **(environment or {})})


def _outcome(program: list[str], seconds: float, environment: Mapping[str, str]) -> Outcome:
    ended = run_bounded(program, seconds, environment)
    if isinstance(ended, str):
        return Outcome(None, ended)
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(ANSWER):
            answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
            if "error" in answer:
                return Outcome(None, str(answer["error"]))
            return Outcome(answer)
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    return Outcome(None, f"{how_it_ended(ended.returncode)}{': ' + said[-1] if said else ''}")


def run_bounded(
    program: list[str], seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | str:
    """Run a program and everything that it starts for so long at most.

    Returns:
        How it ended, or why it did not.
    """
    # Not pipes: they stay open as long as anything that the program started.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(
                program,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:g} s"
        finally:
            # What it started belongs to its session, and goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [_read(stream) for stream in (out, err)]
    return subprocess.CompletedProcess(program, process.returncode, *texts)


def _read(stream: Any) -> str:
    stream.seek(0)
    return stream.buffer.read().decode(errors="replace")


def how_it_ended(status: int) -> str:
    """An exit status in words.

    Example:
        >>> how_it_ended(-11), how_it_ended(3)
        ('killed by SIGSEGV', 'exit status 3')
    """
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"


# A problem of two nodes: choices 1 and 0 cost 10 + 2 + 9, the least that fits into 8 bytes.
_PROBLEM: dict[str, Any] = {
    "problem": {
        "nodes": {
            "intervals": [[0, 2], [1, 3]],
            "costs": [[1, 10], [2, 12]],
            "usages": [[5, 2], [4, 4]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 9, 0]]},
        "usage_limit": 8,
    }
}
_LARGER_THAN_FREE = 2001


def native() -> dict[str, Any]:
    """The native module loads, and compiles something."""
    module: Any = importlib.import_module("alpa_mlir._native")
    text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    parsed = module.parse_module(text)
    parsed.run_pipeline("canonicalize")
    if "tensor<2xf32>" not in parsed.to_text():
        raise RuntimeError("a module does not come back as it was")
    return {"build": str(module.BUILD), "version": str(module.VERSION)}


def devices(platform: str) -> dict[str, Any]:
    """JAX computes on all devices of a platform."""
    jax: Any = importlib.import_module("jax")
    found = jax.devices(platform)
    for device in found:
        ones = jax.device_put(jax.numpy.ones((4, 4)), device)
        result = jax.jit(jax.numpy.matmul)(ones, ones)
        if float(result[0, 0]) != 4.0:
            raise RuntimeError(f"{device} computes ones(4, 4) @ ones(4, 4) = {float(result[0, 0])}")
    memory: list[Any] = [device.memory_stats() for device in found]
    return {
        "kinds": [str(device.device_kind) for device in found],
        "memory_bytes": [stats["bytes_limit"] if stats else None for stats in memory],
    }


def solver(method: str) -> dict[str, Any]:
    """A method solves a small problem right."""
    from alpa_mlir.solver import solve_problem

    found = solve_problem(_PROBLEM, method=method, time_limit_seconds=10)
    if (found.status, found.cost) != ("optimal", 21):
        raise RuntimeError(f"a cost of {found.cost} ({found.status}) where 21 is the least")
    return {}


def gurobi() -> dict[str, Any]:
    """Gurobi has a licence; whether it takes problems of any size."""
    gurobipy: Any = importlib.import_module("gurobipy")
    with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
        expires = int(model.LicenseExpiration)
        model.addVars(_LARGER_THAN_FREE)
        try:
            model.optimize()
        except gurobipy.GurobiError as error:
            if error.errno != gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
                raise
            return {"expires": expires, "any_size": False}
    return {"expires": expires, "any_size": True}


def ray(address: str) -> dict[str, Any]:
    """Ray can be imported, and the cluster of an address answers."""
    ray_: Any = importlib.import_module("ray")
    if not address:
        return {}
    ray_.init(address=address, logging_level="ERROR", log_to_driver=False)
    nodes = [node for node in ray_.nodes() if node["Alive"]]
    return {
        "nodes": len(nodes),
        "cpus": ray_.cluster_resources().get("CPU", 0),
        "gpus": ray_.cluster_resources().get("GPU", 0),
    }


def iree() -> dict[str, Any]:
    """IREE compiles a module, and its runtime runs it."""
    compiler: Any = importlib.import_module("iree.compiler")
    runtime: Any = importlib.import_module("iree.runtime")
    numpy: Any = importlib.import_module("numpy")
    text = """module @probe { func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.add %a, %a : tensor<2xf32>
      return %0 : tensor<2xf32> } }"""
    binary = compiler.compile_str(text, target_backends=["llvm-cpu"], input_type="stablehlo")
    config = runtime.Config("local-task")
    module = runtime.load_vm_module(
        runtime.VmModule.copy_buffer(config.vm_instance, binary), config
    )
    result = module.main(numpy.ones(2, numpy.float32)).to_host().tolist()
    if result != [2.0, 2.0]:
        raise RuntimeError(f"1 + 1 = {result}")
    return {}


def nccl() -> dict[str, Any]:
    """CuPy finds NCCL; needs no GPU."""
    from alpa_runtime.transport.device_backends import load_nccl

    version = int(load_nccl("gpu").cuda.nccl.get_version())
    return {"NCCL": f"{version // 10000}.{version // 100 % 100}.{version % 100}"}


def nixl() -> dict[str, Any]:
    """NIXL starts, with UCX; needs no GPU."""
    from alpa_runtime.transport.device_backends import NixlBackend

    NixlBackend("cpu", {0: 0}).invite(0)
    return {}


def imports(*names: str) -> dict[str, Any]:
    """Modules can be imported."""
    for name in names:
        importlib.import_module(name)
    return {}


_PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe
    for probe in (native, devices, solver, gurobi, ray, iree, nccl, nixl, imports)
}


def _main() -> None:
    name, *arguments = sys.argv[1:]
    try:
        answer = _PROBES[name](*arguments)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"error": f"{type(error).__name__}{': ' + lines[0] if lines else ''}"}
    print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
