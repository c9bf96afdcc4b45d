"""What was found about an installation, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at; a key for machines, such as `"ray"`.
        state: `"ok"`; `"missing"`, an option that is not installed; `"problem"`, it does not work.
        what: what was found.
        fix: what to do about it, if it is not ok.
        needed: nothing works without it; the others are options.
        facts: the same for machines: versions, sizes in bytes, counts.
    """

    name: str
    state: State
    what: str
    fix: str = ""
    needed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_text(self) -> str:
        """One line, and one more with what to do."""
        line = f"  {self.state:<8} {self.what}"
        return f"{line}\n{'':11}{self.fix}" if self.fix else line


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        groups: findings by headline, in the order in which they are shown.
    """

    groups: Mapping[str, tuple[Finding, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them in one row."""
        return tuple(finding for group in self.groups.values() for finding in group)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Needed things that do not work; without any, `alpa-mlir doctor` exits with 0."""
        return tuple(found for found in self.findings if found.needed and found.state != "ok")

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)

    def as_text(self) -> str:
        """A line for each finding, and what it comes to."""
        lines: list[str] = []
        for title, findings in self.groups.items():
            lines += [title, *(finding.as_text() for finding in findings), ""]
        troubles = sum(found.state == "problem" for found in self.findings)
        if self.broken:
            end = f"not usable: {', '.join(found.name for found in self.broken)}"
        elif troubles:
            end = f"usable, with {troubles} problem{'s' if troubles > 1 else ''}"
        else:
            end = "all is well"
        return "\n".join([*lines, end])

    def fields(self) -> dict[str, Any]:
        """The same as a JSON object."""
        groups = {title: [asdict(found) for found in group] for title, group in self.groups.items()}
        return {"usable": not self.broken, "groups": groups}

    def as_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.fields(), indent=1)
