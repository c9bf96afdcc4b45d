"""Every command and every piece of code of the documentation is run, or checked as far as can be.

What marks mean stands in docs/extending.md, "Write a page".
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import alpa_mlir
import docs_blocks
import docs_scene
import pytest
import yaml
from alpa_mlir import errors
from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import AlpaError
from docs_blocks import ROOT, Block, BlockError

PAGES = docs_blocks.pages()
SECONDS, SLOW_SECONDS = 120, 900  # for one command, on a busy machine


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT)).removesuffix(".md")


def _runs(block: Block) -> bool:
    return block.language in docs_blocks.RUN and "not run" not in block.marks


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_can_be_right(page):
    for block in docs_blocks.blocks(page):
        if block.language == "python":
            docs_blocks.check_python(block)
        elif block.language in ("console", "sh"):
            for command, _ in docs_blocks.all_commands(block):
                docs_blocks.check_command(command, block.place)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            data = yaml.safe_load(block.text)
            if isinstance(data, dict) and {"device_types", "hosts"} <= data.keys():
                data.pop("profile", None)
                Cluster.from_dict(data)
    for command, place in docs_blocks.inline_commands(page):
        docs_blocks.check_command(command, place)


WITH_CODE = [p for p in PAGES if re.search(r"^ *```(python|console|sh)\b", p.read_text(), re.M)]
SLOW = [p for p in WITH_CODE if "<!-- docs: slow" in p.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_page_runs(page, tmp_path, monkeypatch):
    _run_page(page, tmp_path, monkeypatch, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=_name)
def test_whole_page_runs(page, tmp_path, monkeypatch):
    _run_page(page, tmp_path, monkeypatch, slow=True)


def _run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "step", raising=False)  # each page has its own
    todo = [b for b in docs_blocks.blocks(page) if slow or "slow" not in b.marks]
    environment = docs_scene.set_up(folder, "\n".join(b.text for b in todo if _runs(b)))
    names = docs_scene.names()
    for block in todo:
        if "file" in block.marks:
            Path(block.marks["file"]).write_text(block.text + "\n")
        elif not _runs(block):
            continue
        elif block.language == "python":
            _run_python(block, names)
        else:
            for command, expected in docs_blocks.all_commands(block):
                if not docs_blocks.is_named(command):
                    _run_command(command, expected, block, environment)


def _run_python(block: Block, names: dict) -> None:
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    try:
        with redirect_stdout(io.StringIO()):
            exec(code, names)
    except AlpaError:
        if "fails" not in block.marks:
            raise
    else:
        assert "fails" not in block.marks, f"{block.place}: no error"


def _run_command(command: str, expected: list[str], block: Block, environment: dict) -> None:
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SLOW_SECONDS if "slow" in block.marks else SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"{block.place}: `{command}` takes too long") from None
    failed = process.returncode != 0
    assert failed == ("fails" in block.marks), f"{block.place}: `{command}`\n{output}"
    at = 0
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        match = re.compile(rf"^\s*{pattern}\s*$", re.M).search(output, at)
        assert match, f"{block.place}: `{command}` does not say {line!r} there, but\n{output}"
        at = match.end()


def _kinds(base: type[AlpaError]) -> set[str]:
    return {base.__name__}.union(*map(_kinds, base.__subclasses__()))


def test_every_error_has_a_section():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    kinds = {name for name in _kinds(AlpaError) if hasattr(errors, name)}
    assert len(kinds) > 20
    sections = dict(re.findall(r"^## (.*)\nCode `(.*?)`\.", text, re.M))
    assert sections == {name: getattr(errors, name).code for name in kinds}


def test_messages_of_errors_are_those_of_the_code():
    code = "\n".join(
        path.read_text()
        for folder, kind in (
            ("python", "*.py"),
            ("runtime", "*.py"),
            ("compiler", "*.cpp"),
            ("dialects", "*.cpp"),
        )
        for path in (ROOT / folder).rglob(kind)
    )
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # strings that go on in the next line
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for row in re.findall(r"^\| (`.*?`)[^|]*\|", text, re.M):
        for part in re.findall(r"`([^`]*)`", row)[0].split(".."):
            assert part in code, f"troubleshooting.md: nothing says {part!r}"


def test_pages_on_passes_and_names_are_whole(tmp_path, monkeypatch):
    """What the site makes of TableGen and of docstrings leaves nothing out."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    api_pages = importlib.import_module("api_pages")
    tablegen_pages = importlib.import_module("tablegen_pages")
    api_pages.write(tmp_path / "api")
    tablegen_pages.write(tmp_path, ROOT)
    reference = "".join(path.read_text() for path in (tmp_path / "api").iterdir())
    found = re.findall(r"^\.\. auto(?!module)\w+:: alpa_mlir\.(\w+)$", reference, re.M)
    assert sorted(found) == sorted(alpa_mlir.__all__)
    passes = re.findall(
        r"^ *--(alpa-(?!test-)[\w-]+) +- ", docs_blocks.program_help("alpa-opt"), re.M
    )
    sections = re.findall(r"^### `(.*)`$", (tmp_path / "passes.md").read_text(), re.M)
    assert len(sections) > 20
    assert set(sections) == set(passes)
    for name in tablegen_pages.DIALECTS:
        assert re.search(rf"^### `{name}\.\w+`$", (tmp_path / f"ops-{name}.md").read_text(), re.M)


def test_figures_of_the_performance_page_are_those_of_the_others():
    number = r"\d[\d,.]*\d|\d"
    page = ROOT / "docs" / "performance.md"
    others = "\n".join(p.read_text() for p in docs_blocks.pages() if p != page)
    known = set(re.findall(number, others))
    for row in re.findall(r"^\|.*\|$", page.read_text(), re.M):
        for figure in re.findall(number, row):
            assert figure in known, f"performance.md: no other page says {figure}: {row}"


def test_pictures_are_as_drawn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    pictures = importlib.import_module("pictures")
    text = "".join((ROOT / "docs" / name).read_text() for name in ("index.md", "concepts.md"))
    for draw in pictures.PICTURES:
        path = pictures.FOLDER / f"{draw.__name__}.svg"
        assert path.read_text() == draw().as_svg(), "run `python docs/site/pictures.py`"
        assert f"(pictures/{path.name})" in text


@pytest.mark.parametrize("page", [p for p in PAGES if "decisions" not in p.parts], ids=_name)
def test_pages_begin_with_what_they_are(page):
    """A title, then a paragraph that can be read by itself, before code, lists and headings."""
    title, *rest = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.S).split("\n\n")
    assert title.startswith("# "), title
    paragraph = (title.partition("\n")[2] or rest[0]).strip()
    assert paragraph[0].isalpha() or paragraph[0] == "`", paragraph
    assert 8 <= len(paragraph.split()) <= 130, f"{len(paragraph.split())} words: {paragraph}"
    assert not paragraph.endswith(":"), paragraph


@pytest.mark.parametrize("name", docs_blocks.TOP)
def test_links_of_top_pages(name):
    """The site's own links are checked when it is built; these pages are not a part of it."""
    page = ROOT / f"{name}.md"
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        aim = ROOT / path if path else page
        assert aim.exists(), f"{page.name}: there is no {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", aim.read_text(), re.M)
            slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{page.name}: {path} has no heading {anchor}"


def test_the_op_that_contributors_follow_is_there():
    """The lines of CONTRIBUTING.md stand in the files that it names, one block in each."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    steps = re.findall(r"^\d\. \*\*.*?(?=^\d\. |^```)", text, re.M | re.S)
    found = 0
    for step in steps:
        files = [ROOT / name for name in re.findall(r"`([\w/.-]+\.\w+)`", step)]
        assert all(path.is_file() for path in files), step
        for block in re.findall(r"^   ```\w+\n(.*?)^   ```", step, re.M | re.S):
            lines = [line.strip() for line in block.splitlines()]
            known = [path.read_text() for path in files]
            assert any(all(line in text for line in lines) for text in known), block
            found += 1
    assert (len(steps), found) == (5, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nmake test\n```\n", "a fence of language ''"),
        ("<!-- docs: not run -->\n```sh\nls\n```\n", "`not run` needs a reason"),
        ("<!-- docs: slow -->\ntext\n", "a mark without a fence"),
        ("<!-- docs: often -->\n", "expected one of"),
        ("```sh\nmake coffee\n```\n", "no target 'coffee'"),
        ("```sh\nalpa-mlir brew\n```\n", "invalid choice: 'brew'"),
        (
            "```sh\nalpa-opt --alpa-import=beans=3 x.mlir\n```\n",
            "alpa-import has no option 'beans'",
        ),
        ("```sh\nalpa-opt --alpa-brew x.mlir\n```\n", "no option 'alpa-brew'"),
        ("```sh\npip install 'alpa-mlir[tea]'\n```\n", "no extras"),
        ("```sh\npython benchmark/planning.py --tea\n```\n", "has no option --tea"),
        ("```sh\nbrew --strong\n```\n", "nothing is known of 'brew'"),
        ("Run `make coffee` now.\n", "no target 'coffee'"),
        ("```python\nalpa_mlir.brew()\n```\n", "there is no alpa_mlir.brew"),
        ("```python\nif\n```\n", "invalid syntax"),
    ],
)
def test_wrong_pages_are_found(text, message, monkeypatch):
    page = ROOT / "docs" / "wrong.md"
    monkeypatch.setattr(Path, "read_text", _reading(page, text, Path.read_text))
    with pytest.raises((BlockError, AssertionError), match=re.escape(message)):
        test_blocks_can_be_right(page)


def _reading(page, text, read):
    return lambda self, *args, **options: text if self == page else read(self, *args, **options)


def test_wrong_commands_fail(tmp_path):
    block = Block(PAGES[0], 1, "sh", "")
    environment = docs_scene.set_up(tmp_path, "")
    with pytest.raises(AssertionError, match="does not say 'two'"):
        _run_command("echo one", ["one", "two"], block, environment)
    with pytest.raises(AssertionError, match="false"):
        _run_command("false", [], block, environment)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
