"""What plans can be written as for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Exported:
    """A plan in the form of another program.

    Attributes:
        text: the file.
        notes: what the plan says and the file does not, each in one line.
    """

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A form.

    Attributes:
        summary: what the file is.
        suffix: of its name.
        module: the one of `alpa_mlir.export` whose `export` makes it.
        has_stages: it can say pipeline stages.
    """

    summary: str
    suffix: str
    module: str
    has_stages: bool = False


#: Every format, by the name that `--to` takes.
FORMATS = MappingProxyType(
    {
        "jax": Format("a Python module of shardings, for `jax.jit`", ".py", "jax_module"),
        "mpmd": Format("Shardy's MPMD dialect", ".mlir", "mpmd", has_stages=True),
        "maxtext": Format("a configuration file of MaxText", ".yml", "maxtext", has_stages=True),
        "levanter": Format("the trainer's section of Levanter's configuration", ".yml", "levanter"),
    }
)
