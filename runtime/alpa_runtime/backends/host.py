"""What machine code depends on: the processor of this host."""

from __future__ import annotations

from functools import cache
from pathlib import Path

# As Linux names them on x86 and on Arm; others are counts, speeds and numbers of this boot.
_X86 = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_ARM = (
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
    "Features",
)
_FIELDS = frozenset((*_X86, *_ARM))


@cache
def host_cpu() -> str | None:
    """Make, model and instruction sets of the processor; None where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    found: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FIELDS:
            found[name.strip()] = " ".join(sorted(value.split()))
    if not found.keys() & {"flags", "Features"}:
        return None
    return "; ".join(f"{name}: {value}" for name, value in sorted(found.items()))
