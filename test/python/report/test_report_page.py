"""The report in a browser: what it shows is the data, it asks for nothing, and it can be used."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import alpa_mlir
import handmade
import pytest
import zoo
from alpa_mlir import PipeshardParallel
from alpa_mlir.report import collect, write_report
from alpa_mlir.simulator import simulate
from alpa_runtime.execution.loaded_plan import load as load_plan
from alpa_runtime.plan.interface import Exactness
from alpa_runtime.plan.plan import Tried
from alpa_runtime.step_trace import Recording
from browser import chromium
from pipelines import pipeline
from test_equality import CLUSTER
from test_report import EVIL

SECTIONS = [
    "summary", "comparison", "time", "cluster", "sharding", "timeline", "memory", "communication",
    "alternatives", "certificates",
]  # fmt: skip

IDS = "return [...document.querySelectorAll('section')].map((section) => section.id)"


@pytest.fixture(scope="module")
def plan():
    model = zoo.make_gpt(zoo.GPTConfig(layers=2))
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=4)
    planned = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method)
    found = planned.plan(*model.init()).plan
    tried = Tried(2, "none", "gpipe", 2 * found.predicted["step_seconds"], 2, 1e6)
    return dataclasses.replace(found, tried=(*found.tried, tried))


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "plan.html"
    return write_report(plan, path, compare={"other": dataclasses.replace(plan, schedule="gpipe")})


@pytest.fixture
def page(browser, report):
    browser.errors.clear()
    browser.requests.clear()
    browser.resize(1280)
    browser.prefer("light")
    browser.open(report)
    yield browser
    browser.collect()
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def text(page, selector):
    return page.run("return document.querySelector(arguments[0]).innerText", selector)


def texts(page, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)"
    return page.run(script, selector)


def test_every_section_is_there(page, plan):
    data = collect(plan)
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.run(IDS) == SECTIONS
    assert len(texts(page, "#nav a")) == len(SECTIONS)
    assert page.run("return document.querySelectorAll('#cluster .device').length") == 8
    assert page.run("return document.querySelectorAll('#cluster .device.idle').length") == 0
    assert len(texts(page, "#cluster tbody tr")) == len(plan.stages)
    assert len(texts(page, "#sharding .layer")) == len(data.layers)
    assert page.run("return document.querySelectorAll('#memory figure').length") == 2
    assert len(texts(page, "#certificates tbody tr")) == 2
    assert texts(page, "#certificates .badge") == [stage.solver["status"] for stage in plan.stages]
    assert "taken" in text(page, "#alternatives .table")
    assert "2 differences from other" in text(page, "#comparison")
    assert "the same" in text(page, "#comparison tbody tr:nth-child(2)")
    assert "gpipe" in text(page, "#alternatives")
    assert texts(page, ".note") == []


def test_numbers_are_the_plans(page, plan):
    """As the page writes them: three figures and a unit."""
    data = collect(plan)
    header, figures = data.header, data.figures
    cards = dict(card.split("\n\n")[:2] for card in texts(page, "#summary .card"))
    assert cards["Step"] == _seconds(header.predicted_seconds)
    assert text(page, "#summary .strategy") == header.strategy
    assert cards["MFU"] == f"{float(f'{100 * figures.mfu:.3g}'):g}\u00a0%"
    assert f"{figures.tokens:,} tokens a step" in text(page, "#summary")
    found = len(set(plan.exactness.sums))
    assert f"on the whole batch, over 4 micro-batches with {found} sums." in text(page, "#summary")
    stages = [row.split("\t") for row in texts(page, "#cluster tbody tr")]
    assert [row[4] for row in stages] == ["0\u20133", "4\u20137"]
    assert [row[6] for row in stages] == [
        _seconds(stage.predicted["forward_seconds"]) for stage in plan.stages
    ]
    rows = [row.split("\t") for row in texts(page, "#certificates tbody tr")]
    bounds = [stage.solver["lower_bound_seconds"] for stage in plan.stages]
    assert [row[3] for row in rows] == list(map(_seconds, bounds))


def _seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{float(f'{value / scale:.3g}'):g} {unit}"
    raise AssertionError(value)


def test_tensors_are_found(page, plan):
    shown = "return document.querySelectorAll('#tensors tbody tr').length"
    enter = (
        "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
        "box.dispatchEvent(new Event('input'))"
    )
    every = len(collect(plan).tensors.names)
    found = re.fullmatch(r"([\d,]+) tensors in ([\d,]+) rows", text(page, "#tensor-count"))
    assert int(found[1].replace(",", "")) == every
    assert int(found[2].replace(",", "")) < every
    page.run(enter, "tensor-search", "qkv kernel")
    rows = texts(page, "#tensors tbody tr")
    assert rows
    assert all("qkv" in row and "kernel" in row for row in rows)
    page.run("document.getElementById('tensor-fold').click()")
    single = texts(page, "#tensors tbody tr")
    assert len(single) == sum(int(row.split("\t")[1]) for row in rows)
    names = [row.split("\t")[0] for row in single]
    known = {info.name for info in plan.inputs if "qkv" in info.name and "kernel" in info.name}
    assert set(names) == known
    page.run(enter, "tensor-search", "no such tensor")
    assert page.run(shown) == 0
    assert text(page, "#tensor-count") == "0 tensors"


def test_tables_are_sorted_by_their_headers(page):
    rows = "return [...document.querySelectorAll('#tensors tbody tr')]"
    column = f"{rows}.map((row) => +row.cells[1].innerText)"
    header = "#tensors th:nth-child(2)"
    page.run("document.querySelector(arguments[0] + ' button').click()", header)
    falling = page.run(column)
    assert falling == sorted(falling, reverse=True)
    assert page.run("return document.querySelector(arguments[0]).ariaSort", header) == "descending"
    page.run("document.querySelector(arguments[0] + ' button').click()", header)
    rising = page.run(column)
    assert rising == sorted(rising)
    assert rising != falling


VIEW = ".view-box .view"


def hover(page, selector, x, y):
    page.run(
        "const node = document.querySelector(arguments[0]);"
        "node.scrollIntoView(); const b = node.getBoundingClientRect();"
        "const at = { clientX: b.left + arguments[1], clientY: b.top + arguments[2] };"
        "node.dispatchEvent(new PointerEvent('pointermove', { ...at, bubbles: true }))",
        selector,
        x,
        y,
    )
    return page.run(
        "const t = document.getElementById('tip'); return t.hidden ? null : t.innerText"
    )


def test_the_timeline_zooms_moves_and_says_what_is_there(page, plan):
    whole = text(page, VIEW)
    assert whole.startswith("0 s to ")
    assert "forward of micro-batch 0" in hover(page, "canvas.timeline", 114, 30)
    assert hover(page, "canvas.timeline", 20, 30) is None
    press = "document.querySelector(`.view-box button[aria-label='${arguments[0]}']`).click()"
    page.run(press, "zoom in")
    near = text(page, VIEW)
    assert near != whole
    page.run(press, "later")
    assert text(page, VIEW) != near
    page.run(press, "show all")
    assert text(page, VIEW) == whole
    key = (
        "document.querySelector('canvas.timeline').dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0]}))"
    )
    page.run(key, "+")
    assert text(page, VIEW) == near
    page.run(key, "0")
    assert text(page, VIEW) == whole
    painted = page.run(
        "const c = document.querySelector('canvas.timeline');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "const seen = new Set(); for (let i = 0; i < d.length; i += 4)"
        " seen.add(d[i] * 65536 + d[i + 1] * 256 + d[i + 2]);"
        "return [0x0072b2, 0xe69f00, 0x009e73].map((colour) => seen.has(colour))"
    )
    assert painted == [True, True, True]  # Forward, backward, update.


def test_devices_and_boxes_say_what_they_are(page):
    tip = hover(page, "#cluster .device[data-device='5']", 3, 3)
    assert tip.startswith("device 5\nhost 1, small")
    assert "stage 1" in tip
    assert "split as [" in hover(page, "#sharding .layer[open] .tensor", 3, 3)
    closed = "#sharding .layer:not([open])"
    if page.run("return document.querySelectorAll(arguments[0]).length", closed):
        page.run("document.querySelector(arguments[0] + ' > summary').click()", closed)
    page.run("return new Promise((done) => setTimeout(done, 50))")
    opened = "return [...document.querySelectorAll('.layer[open]')]"
    assert page.run(f"{opened}.every((layer) => layer.querySelector('.ops'))")


@pytest.mark.parametrize("width", [390, 900, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits(page, width, scheme):
    """Nothing is wider than the window, and text can be told from its ground."""
    page.resize(width)
    page.prefer(scheme)
    assert page.run("return document.documentElement.scrollWidth") <= width
    contrast = page.run(
        """
        const light = (text) => {
          const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => {
            const c = v / 255;
            return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
          });
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = (node) => {
          for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            if (!/^rgba.*, 0\\)$/.test(colour)) return colour;
          }
          return 'rgb(255, 255, 255)';
        };
        const kinds = 'p, td, th, li, h1, h2, h3, .chip, .badge, .dims b, .quiet';
        return [...document.querySelectorAll(kinds)]
          .filter((node) => node.innerText && node.getClientRects().length)
          .map((node) => [light(getComputedStyle(node).color), light(ground(node))])
          .map((both) => (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05))
          .reduce((a, b) => Math.min(a, b), 21)
        """
    )
    assert contrast >= 4.5  # WCAG 2, level AA.


def test_it_can_be_read_without_seeing(page):
    """Pictures have names, controls have labels, headings do not skip a level."""
    nameless = page.run(
        "return [...document.querySelectorAll('[role=img], canvas, svg:not([aria-hidden])')]"
        ".filter((e) => !e.closest('[aria-hidden]') && !e.getAttribute('aria-label'))"
        ".map((e) => e.outerHTML)"
    )
    assert nameless == []
    unlabelled = page.run(
        "return [...document.querySelectorAll('button, input, select')]"
        ".filter((e) => !e.textContent && !e.labels?.length && !e.ariaLabel && !e.hidden)"
        ".map((e) => e.outerHTML)"
    )
    assert unlabelled == []
    levels = page.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map((h) => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.run(
        "return [...document.querySelectorAll('section')].every("
        "(s) => document.getElementById(s.getAttribute('aria-labelledby')))"
    )


def test_names_are_text(browser, plan, tmp_path):
    """Whatever a name holds, it is shown and nothing else happens."""
    first = dataclasses.replace(plan.inputs[0], name=EVIL)
    evil = dataclasses.replace(plan, name=EVIL, inputs=(first, *plan.inputs[1:]))
    browser.open(write_report(evil, tmp_path / "evil.html", compare={EVIL: plan}))
    assert text(browser, "h1").replace("\u2028", "") == EVIL.replace("\u2028", "")
    assert browser.run("return window.hacked === undefined && !document.querySelector('img')")
    assert browser.run("return document.title").startswith("</script><img")


def test_lines_that_are_not_the_whole_batchs_are_named(browser, plan, tmp_path):
    exactness = Exactness(False, estimates=("model.py:12", EVIL))
    estimated = dataclasses.replace(plan, exactness=exactness)
    browser.errors.clear()
    browser.open(write_report(estimated, tmp_path / "plan.html"))
    assert browser.errors == []
    assert "Results differ from those of jax.jit" in text(browser, "#summary .note")
    assert len(texts(browser, "#summary .note li")) == 2
    assert texts(browser, "#summary .note li")[0] == "model.py:12"


def test_recorded_steps_stand_beside_the_simulated_one(browser, tmp_path):
    plan = handmade.as_plan(*handmade.two_stages(2))
    seconds = {f"{name}_seconds": 1e-3 for name in ("forward", "backward", "update")}
    stages = tuple(dataclasses.replace(s, predicted=seconds) for s in plan.stages)
    plan = dataclasses.replace(plan, stages=stages, cluster={})
    loaded = load_plan(plan)
    args = handmade.flat(*handmade.arguments(2))
    with Recording(loaded) as recording:
        for _ in range(2):
            args[:2] = loaded(args)[:2]
    timeline = simulate(plan, "cpu-test")
    path = write_report(plan, tmp_path / "plan.html", timeline=timeline, record=recording)
    browser.errors.clear()
    browser.open(path)
    assert browser.errors == []
    heads = texts(browser, "#timeline h3")
    assert [head.split(" ")[0].strip(",") for head in heads] == ["Simulated", "Real"]
    assert "2 steps" in heads[1]
    assert "real, mean of 2 steps" in text(browser, "#summary")
    whole = texts(browser, VIEW)[1]
    browser.run("document.querySelector(`button[aria-label='show step 1']`).click()")
    assert texts(browser, VIEW)[1] != whole


def test_stages_that_share_a_mesh(browser, tmp_path):
    """They have one row of the timeline, and one colour."""
    model = zoo.make_gpt(zoo.GPTConfig(layers=1))
    method = PipeshardParallel(
        submeshes=[(1, 4), (1, 4)],
        schedule="interleaved-1f1b",
        virtual_stages=2,
        num_micro_batches=2,
        layer_ranges=[(0, 1), (1, 2), (2, 3), (3, 4)],
        layers=4,
    )
    planned = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method)
    browser.errors.clear()
    browser.open(write_report(planned.plan(*model.init()).plan, tmp_path / "plan.html"))
    assert browser.errors == []
    colours = browser.run(
        "return [...document.querySelectorAll('#cluster tbody .chip')]"
        ".map((chip) => chip.style.background)"
    )
    assert colours[0] == colours[2] != colours[1] == colours[3]
    script = "return document.querySelector(`[data-device='${arguments[0]}']`).getAttribute('fill')"
    fills = [browser.run(script, device) for device in range(8)]
    assert len(set(fills[:4])) == len(set(fills[4:])) == 1
    assert fills[0] != fills[4]
    assert len(texts(browser, "#timeline details tbody tr")) == 2


def test_a_plan_that_says_little(browser, tmp_path):
    """Written by hand: every section is there, and says what is missing."""
    browser.errors.clear()
    browser.open(write_report(pipeline([(1, 2, 1)] * 2, 3), tmp_path / "plan.html"))
    assert browser.errors == []
    assert browser.run("return [...document.querySelectorAll('section')].map((s) => s.id)") == [
        name for name in SECTIONS if name != "comparison"
    ]
    assert len(texts(browser, ".note")) == 7
    assert "not said" in text(browser, "#summary")
