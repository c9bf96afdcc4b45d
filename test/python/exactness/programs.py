"""Random steps as source text: short, valid, and without operations that magnify rounding.

A program is written line by line. Each line makes a value of a known layout of values made
before, so that every program is valid. Values of the whole batch (reductions) are used behind
the loss only, but in programs that are allowed to couple examples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from exactness.harness import Case, Style
from exactness.models import labels, normal, rows

N, TIME, CLASSES = 8, 3, 4
WIDTHS = (3, 4, 6, 8)
# Layouts of values: where the batch is. The last letter's size is drawn.
ROWS, SERIES, COLUMNS, STEPS, ROWS_OF_SERIES, ONES = "bd", "btd", "db", "tbd", "(bt)d", "b"


@dataclass(frozen=True)
class Value:
    name: str
    layout: str
    width: int = 0


@dataclass(repr=False)
class Program:
    """Source of a step, as its `repr`, with shapes of parameters."""

    body: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    couples: bool = False
    has_gradients: bool = True
    counter: str = "seen + 1"

    def __str__(self) -> str:
        metrics = [f"        {i}: {text}," for i, text in enumerate(self.metrics)]
        inner = [*self.body, f"value = {' + '.join(self.terms)}"]
        if self.has_gradients:
            lines = [
                "def step(params, seen, b):",
                "    n = b['x'].shape[0]",
                "    def loss(params):",
                *("        " + line for line in inner),
                "        return value, {",
                *("    " + line for line in metrics),
                "        }",
                "    (value, seen_now), grads = jax.value_and_grad(loss, has_aux=True)(params)",
                *("    " + line for line in self.update),
                "    new = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)",
                f"    return new, {self.counter}, (value, seen_now, [{', '.join(self.after)}])",
            ]
        else:
            lines = [
                "def step(params, seen, b):",
                "    n = b['x'].shape[0]",
                *("    " + line for line in inner),
                f"    return params, {self.counter}, (value, {{",
                *metrics,
                "    })",
            ]
        lines.append(f"# parameters: {self.shapes}")
        return "\n".join(lines)

    __repr__ = __str__

    def parameters(self) -> dict[str, jax.Array]:
        def make(name: str, shape: tuple[int, ...]) -> jax.Array:
            fan = shape[-2] if len(shape) > 1 else 4
            return normal(zlib.crc32(name.encode()), *shape, scale=fan**-0.5)

        return {name: make(name, shape) for name, shape in self.shapes.items()}

    def style(self) -> Style:
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp}
        exec(str(self), scope)  # source that this module has written
        state = (self.parameters(), jnp.int32(0))
        couples = "operations along the batch" if self.couples else ""
        make = lambda: Case(scope["step"], state, lambda rng: (batch(rng),), carried=2)  # noqa: E731
        return Style("program", make, couples)


def batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows, series, labels, and a mask that keeps nothing of the first half but one."""
    mask = (rng.uniform(size=N) < 0.6).astype(np.float32)
    mask[: N // 2] = 0
    mask[[N // 2 - 1, N - 1]] = 1
    return {
        "x": rows(rng, N, 6),
        "s": rows(rng, N, TIME, 4),
        "label": labels(rng, N, classes=CLASSES),
        "mask": mask,
        "weight": rng.uniform(0.5, 2, N).astype(np.float32),
    }


class Writer:
    """Appends lines to a program, with choices of hypothesis."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.program = Program()
        self.values = [Value("b['x']", ROWS, 6), Value("b['s']", SERIES, 4)]

    def choose(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def width(self) -> int:
        return self.choose(WIDTHS)

    def parameter(self, *shape: int) -> str:
        """A parameter of this shape; sometimes one that is used already."""
        same = [name for name, other in self.program.shapes.items() if other == shape]
        if same and self.choose([False, True]):
            return f"params['{same[-1]}']"
        name = f"p{len(self.program.shapes)}"
        self.program.shapes[name] = shape
        return f"params['{name}']"

    def some(self, *layouts: str, width: int = 0, but: Value | None = None) -> Value | None:
        """A value of one of the layouts, most often one of the newest."""
        found = [
            value
            for value in self.values
            if (not layouts or value.layout in layouts)
            and (not width or value.width == width)
            and value != but
        ]
        return self.choose(found[::-1][:4]) if found else None

    def add(self, text: str, layout: str, width: int = 0) -> Value:
        value = Value(f"v{len(self.program.body)}", layout, width)
        self.program.body.append(f"{value.name} = {text}")
        self.values.append(value)
        return value

    # Each of the following adds one line, or none if nothing fits.

    def dense(self) -> None:
        x = self.some(ROWS, SERIES, STEPS, ROWS_OF_SERIES)
        assert x is not None
        width = self.width()
        text = f"{x.name} @ {self.parameter(x.width, width)}"
        if self.choose([True, False]):
            text += f" + {self.parameter(width)}"
        self.add(text, x.layout, width)

    def unary(self) -> None:
        x = self.some()
        form = self.choose(
            [
                "jnp.tanh({})",
                "jnp.sin({})",
                "jax.nn.sigmoid({})",
                "jax.nn.softplus({})",
                "jnp.where({0} > 0, {0}, 0.1 * {0})",
                "jnp.sqrt(1 + {0} * {0})",
                "jnp.exp(-{0} * {0})",
                "jnp.clip({}, -2, 2)",
                "0.5 * {} + 0.1",
                "jax.lax.stop_gradient({})",
                "jax.checkpoint(lambda v: jnp.tanh(jnp.sin(v) + v))({})",
            ]
        )
        self.add(form.format(x.name), x.layout, x.width)

    def binary(self) -> None:
        x = self.some()
        y = self.some(x.layout, width=x.width, but=x)
        if y is None:
            return
        form = self.choose(
            [
                "{} + {}",
                "{} - 0.7 * {}",
                "{} * jnp.tanh({})",
                "jnp.maximum({}, {})",
                "{0} / (1 + {1} * {1})",
                "jnp.where({1} > 0.1, {0}, {1})",
            ]
        )
        self.add(form.format(x.name, y.name), x.layout, x.width)

    def along_features(self) -> None:
        x = self.some(ROWS, SERIES, STEPS, ROWS_OF_SERIES)
        form = self.choose(
            [
                "jax.nn.softmax({}, -1)",
                "jax.nn.log_softmax({}, -1)",
                "jnp.sort({}, -1)",
                "{}[..., ::-1]",
                "jnp.cumsum({}, -1)",
                "jnp.roll({}, 1, -1)",
                "{0} - {0}.mean(-1, keepdims=True)",
                "{0} * jax.lax.rsqrt(({0} * {0}).mean(-1, keepdims=True) + 0.1)",
            ]
        )
        self.add(form.format(x.name), x.layout, x.width)

    def reduced(self) -> None:
        x = self.some(ROWS, SERIES, COLUMNS)
        kind = self.choose(["sum", "mean", "max"])
        if x.layout == SERIES and self.choose([True, False]):
            self.add(f"{x.name}.{kind}(1)", ROWS, x.width)
        else:
            axes = {ROWS: "1", SERIES: "(1, 2)", COLUMNS: "0"}[x.layout]
            self.add(f"{x.name}.{kind}({axes})", ONES)

    def moved(self) -> None:
        x = self.some(ROWS, COLUMNS, SERIES, STEPS, ROWS_OF_SERIES)
        d = x.width
        forms = {
            ROWS: [
                (f"{x.name}.T", COLUMNS, d),
                (f"{x.name}[:, None] * jnp.ones(({TIME}, 1))", SERIES, d),
            ],
            COLUMNS: [(f"{x.name}.T", ROWS, d), (f"jnp.swapaxes({x.name}, 0, 1)", ROWS, d)],
            SERIES: [
                (f"{x.name}.swapaxes(0, 1)", STEPS, d),
                (f"{x.name}.reshape(-1, {d})", ROWS_OF_SERIES, d),
                (f"{x.name}.reshape(n, -1)", ROWS, TIME * d),
                (f"{x.name}[:, {TIME - 1}]", ROWS, d),
                (f"{x.name}[:, 1:, 0]", ROWS, TIME - 1),
            ],
            STEPS: [(f"jnp.transpose({x.name}, (1, 0, 2))", SERIES, d), (f"{x.name}[1]", ROWS, d)],
            ROWS_OF_SERIES: [(f"{x.name}.reshape(-1, {TIME}, {d})", SERIES, d)],
        }
        if x.layout == ROWS and d % TIME == 0:
            forms[ROWS].append((f"{x.name}.reshape(n, {TIME}, -1)", SERIES, d // TIME))
        text, layout, width = self.choose(forms[x.layout])
        self.add(text, layout, width)

    def gathered(self) -> None:
        width = self.width()
        x = self.some(ROWS)
        take = f"b['label'] % {x.width}"
        text, layout, size = self.choose(
            [
                (f"jnp.take_along_axis({x.name}, ({take})[:, None], 1)[:, 0]", ONES, 0),
                (f"{x.name}[jnp.arange(n), {take}]", ONES, 0),
                (f"jax.vmap(lambda row, i: row[i])({x.name}, {take})", ONES, 0),
                (f"jax.nn.one_hot(b['label'], {width})", ROWS, width),
                ("", ROWS, width),
            ]
        )
        self.add(text or f"{self.parameter(CLASSES, width)}[b['label']]", layout, size)

    def joined(self) -> None:
        x, y = self.some(ROWS), self.some(ROWS)
        if x.width + y.width <= 16:
            self.add(f"jnp.concatenate([{x.name}, {y.name}], 1)", ROWS, x.width + y.width)

    def masked(self) -> None:
        x = self.some(ROWS, ONES)
        mask = self.choose(["b['mask']", "b['weight']", "(1 + jnp.arange(n) / n)", "b['label']"])
        mask += "[:, None]" if x.layout == ROWS else ""
        form = self.choose(["{0} * {1}", "jnp.where({1} > 0.5, {0}, 0)"])
        self.add(form.format(x.name, mask), x.layout, x.width)

    def spread(self) -> None:
        x, y = self.some(ROWS, COLUMNS), self.some(ONES)
        if y is not None:
            form = "{} * jnp.tanh({})" + ("[:, None]" if x.layout == ROWS else "")
            self.add(form.format(x.name, y.name), x.layout, x.width)

    def multiplied(self) -> None:
        x = self.some(ROWS, SERIES)
        y = self.some(x.layout, width=x.width)
        product, layout, width = {
            ROWS: ("bd,bd->b", ONES, 0),
            SERIES: ("btd,bsd->bts", SERIES, TIME),
        }[x.layout]
        self.add(f"jnp.einsum('{product}', jnp.tanh({x.name}), {y.name})", layout, width)

    def scanned(self) -> None:
        x = self.some(ROWS, STEPS)
        d = x.width
        if x.layout == ROWS:
            p = self.parameter(2, d, d)
            text = f"jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), {x.name}, {p})[0]"
            self.add(text, ROWS, d)
            return
        p = self.parameter(d, d)
        body = f"lambda h, v: (jnp.tanh(h @ {p} + v), h + v)"
        text = f"jax.lax.scan({body}, 0 * {x.name}[0], {x.name})"
        kind = self.choose([0, 1])
        self.add(f"{text}[{kind}]", (ROWS, STEPS)[kind], d)

    def coupled(self) -> None:
        x = self.some(ROWS)
        form = self.choose(
            [
                "{0} - {0}.mean(0)",
                "jax.nn.softmax({}, 0)",
                "jnp.cumsum({}, 0) / n",
                "{0} + 0.5 * {0}[::-1]",
                "jnp.sort({}, 0)",
                "jnp.tanh({0} @ {0}.T) @ {0} / n",
                "jnp.roll({}, 1, 0)",
            ]
        )
        self.add(form.format(x.name), ROWS, x.width)

    def per_example(self) -> str:
        """An expression of the shape [n]."""
        x = self.some(ROWS, SERIES, COLUMNS, ONES)
        axes = {ROWS: ".mean(1)", SERIES: ".mean((1, 2))", COLUMNS: ".mean(0)", ONES: ""}
        return f"({x.name} ** 2){axes[x.layout]}"

    def term(self) -> str:
        losses = self.per_example()
        x = self.some()
        forms = [
            f"{losses}.mean()",
            f"0.2 * {losses}.sum()",
            f"jnp.sum({losses} * b['mask']) / jnp.sum(b['mask'])",
            f"jnp.sum({losses} * b['mask']) / jnp.maximum((b['mask'] > 0).sum(), 1)",
            f"jnp.average({losses}, weights=b['weight'])",
            f"jnp.sum({losses}) / n",
            f"jnp.mean(jnp.sin({x.name}))",
            f"jnp.mean(jnp.tanh({x.name}) ** 2)",
        ]
        if self.program.shapes:
            forms.append("0.01 * sum(jnp.sum(p ** 2) for p in params.values())")
        return self.choose(forms)

    def metric(self) -> str:
        """What is made of sums, extremes, and single examples."""
        x = self.some()
        losses = self.per_example()
        over = {ROWS: 0, SERIES: 0, COLUMNS: 1, STEPS: 1, ROWS_OF_SERIES: 0, ONES: 0}[x.layout]
        forms = [
            f"{x.name}.max()",
            f"{x.name}.min()",
            f"{x.name}.max({over})",
            f"(1 + jnp.abs({x.name})).mean({over})",
            f"jnp.exp(-{losses}.mean())",
            f"jnp.sqrt(1 + {losses}.sum())",
            f"{losses}.sum() / (1 + ({x.name} ** 2).sum())",
            f"jnp.sum({losses} * b['mask']) / jnp.sum(b['mask'])",
            f"jnp.zeros({CLASSES}).at[b['label']].add({losses})",
            f"jnp.bincount(b['label'], length={CLASSES})",
            "(b['x'] > 0).sum()",
            "(b['x'] > 2).any()",
            "b['label'].max()",
            "b['mask'].sum() / n",
            "n",
        ]
        if x.layout in (ROWS, SERIES, ONES):
            forms.append(x.name)
        if x.layout == ROWS:
            forms.append(f"{x.name}.T @ {x.name} / n")
        return self.choose(forms)


LINES = (
    Writer.dense,
    Writer.unary,
    Writer.binary,
    Writer.along_features,
    Writer.reduced,
    Writer.moved,
    Writer.gathered,
    Writer.joined,
    Writer.masked,
    Writer.spread,
    Writer.multiplied,
    Writer.scanned,
)
UPDATES = (
    "",
    "grads = jax.tree.map(lambda g: jnp.clip(g, -0.5, 0.5), grads)",
    "norm = jnp.sqrt(1e-3 + sum(jnp.sum(g ** 2) for g in grads.values()))\n"
    "grads = jax.tree.map(lambda g: g / jnp.maximum(1, norm), grads)",
    "grads = jax.tree.map(lambda g: g / (1 + jnp.abs(value)), grads)",
    "grads = jax.lax.cond(value > 0.3, lambda: grads, lambda: jax.tree.map(jnp.tanh, grads))",
)
AFTER = (
    "sum(jnp.sum(g ** 2) for g in grads.values())",
    "jnp.isfinite(value)",
    "jnp.exp(-value * value)",
    "jnp.max(jnp.stack([jnp.abs(g).max() for g in grads.values()]))",
)


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    """Programs of up to ten lines, three terms of the loss and three metrics."""
    writer = Writer(draw)
    program = writer.program
    program.has_gradients = draw(st.integers(0, 4)) < 4
    program.counter = draw(st.sampled_from(["seen + 1", "seen + n"]))
    program.couples = draw(st.integers(0, 9)) == 9
    writer.dense()
    for _ in range(draw(st.integers(1, 9))):
        writer.choose(LINES)(writer)
    if program.couples:
        writer.coupled()
        writer.choose(LINES)(writer)
    program.terms = [writer.term() for _ in range(draw(st.integers(1, 3)))]
    program.metrics = [writer.metric() for _ in range(draw(st.integers(0, 3)))]
    if program.has_gradients:
        program.update = writer.choose(UPDATES).splitlines()
        program.after = [writer.choose(AFTER)] if draw(st.booleans()) else []
    return program
