"""Looks at an installation; whatever could crash or hang runs in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from alpa_mlir.doctor import installation, machine, options
from alpa_mlir.doctor._diagnosis import Diagnosis, Finding

Check = Callable[[float], Iterable[Finding]]

#: What is looked at, by headline.
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "installation": (
        installation.package,
        installation.python,
        installation.dependencies,
        installation.compiler,
    ),
    "devices": (installation.cpu, options.gpu),
    "solvers": (installation.built_in_solver, options.highs, options.gurobi),
    "options": (
        options.ray,
        options.iree,
        options.nccl,
        options.nixl,
        options.checkpoints,
        options.plots,
    ),
    "this machine": (machine.cache, machine.temporary, machine.memory, machine.limits),
}


def diagnose(*, seconds: float = 60.0) -> Diagnosis:
    """Find out what works here.

    It neither raises nor hangs: what is tried runs in other processes, of which nothing is left
    behind, and a check that fails itself is a finding too.

    Args:
        seconds: how long anything that is tried may take; several things are tried at a time.

    Example:
        >>> found = diagnose()  # doctest: +SKIP
        >>> found["jax"].state  # doctest: +SKIP
        'ok'
    """
    with ThreadPoolExecutor(4) as pool:
        pending = {
            title: [pool.submit(_carefully, check, seconds) for check in checks]
            for title, checks in CHECKS.items()
        }
        groups = {
            title: tuple(finding for future in futures for finding in future.result())
            for title, futures in pending.items()
        }
    return Diagnosis(groups)


def _carefully(check: Check, seconds: float) -> list[Finding]:
    try:
        return list(check(seconds))
    except Exception as error:
        name = check.__name__
        what = f"{name}: the check itself failed: {type(error).__name__}: {error}"
        return [Finding(name, "problem", what, "report this")]
