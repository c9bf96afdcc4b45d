"""The site's search finds pages by the field's words, in a browser and without a server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import chromium

ROOT = Path(__file__).resolve().parents[2]
# Pages alone: what is made of docstrings and TableGen takes a minute, and has these words as well.
SETTINGS = {
    "extensions": "myst_parser",
    "exclude_patterns": "generated,site",
    "html_theme": "basic",
    "myst_enable_extensions": "dollarmath,deflist,colon_fence",
    "myst_heading_anchors": "5",
}
RESULTS = "return [...document.querySelectorAll('#search-results li a')].map((a) => a.href)"
STATUS = "return document.querySelector('#search-results .search-summary')?.textContent ?? ''"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    settings = [part for item in SETTINGS.items() for part in ("-D", "=".join(item))]
    command = [sys.executable, "-m", "sphinx", "-Q", "-C", *settings, "-d", str(folder / "read")]
    subprocess.run([*command, str(ROOT / "docs"), str(folder / "html")], check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def search(browser, site: Path, words: str) -> list[str]:
    """The pages that are found, the best first, as `page` or `page#section`."""
    browser.driver.get((site / "search.html").as_uri() + "?q=" + quote(words))
    end = time.monotonic() + 60
    while not ({"found", "did"} & set(browser.run(STATUS).split())):
        assert time.monotonic() < end, f"the search for {words!r} does not end"
        time.sleep(0.05)
    start = site.as_uri() + "/"
    links = (link.removeprefix(start).partition("?") for link in browser.run(RESULTS))
    found = (
        page.removesuffix(".html") + "".join(rest.partition("#")[1:]) for page, _, rest in links
    )
    return [link.replace(".html", "") for link in found]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("FSDP", "methods#fsdp"),
        ("multi-node", "howto/launch"),
        ("flash attention", "kernels#flash-attention"),
        ("MFU", "words#mfu"),
        ("Slurm", "howto/launch#slurm"),
        ("Kubernetes", "howto/launch#kubernetes"),
        ("MaxText", "examples#maxtext"),
        ("LoRA", "words#lora"),
        ("context parallelism", "words#context-parallelism"),
        ("gradient accumulation", "words#gradient-accumulation"),
        ("activation checkpointing", "words#activation-checkpointing"),
        ("OOM", "words#oom"),
    ],
)
def test_words_find_their_page(browser, site, words, page):
    found = search(browser, site, words)
    assert page in found[:5], found[:8]


def test_what_is_nowhere_is_not_found(browser, site):
    assert search(browser, site, "quixotic zeppelin") == []
