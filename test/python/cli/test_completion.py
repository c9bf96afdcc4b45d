"""Completion in a real bash; the scripts for other shells name the same things."""

from __future__ import annotations

import subprocess

import pytest
from alpa_mlir import cli
from alpa_mlir.compiler import cluster_presets

# Bash would set these variables, and call the function that was registered for the command.
ASK = """
source "$1"; shift
words=("$@")
COMP_WORDS=("${words[@]}")
COMP_CWORD=$((${#words[@]} - 1))
function=$(complete -p alpa-mlir | sed -E 's/.*-F ([^ ]+) .*/\\1/')
$function alpa-mlir "${words[COMP_CWORD]}" "${words[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes(tmp_path, capsys):
    file = tmp_path / "completion"
    assert cli.main(["completion", "bash", "-o", str(file)]) == 0
    assert file.read_text() == script("bash", capsys).removeprefix(f"wrote {file}\n")
    (tmp_path / "my_plan").mkdir()
    (tmp_path / "my_cluster.yaml").write_text("")

    def complete(*words: str) -> set[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", str(file), "alpa-mlir", *words],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},  # Completing needs no command of ours.
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr
        return set(done.stdout.split())

    assert complete("") == {*cli.COMMANDS}
    assert complete("sim") == {"simulate"}
    assert complete("plan", "--schedu") == {"--schedule"}
    assert {"gpipe", "1f1b"} <= complete("plan", "--schedule", "")
    assert complete("plan", "--cluster", "dgx") == {
        name for name in cluster_presets() if name.startswith("dgx")
    }
    assert complete("plan", "--cluster", "my_c") == {"my_cluster.yaml"}
    assert complete("simulate", "my") == {"my_plan"}
    assert "my_cluster.yaml" in complete("plan", "my")
    assert complete("completion", "") == {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_the_same(shell, capsys):
    text = script(shell, capsys)
    for name, summary in cli.COMMANDS.items():
        assert name in text
        assert summary[:40] in text.replace("\\", "")
    for name in cluster_presets():
        assert name in text
