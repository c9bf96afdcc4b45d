"""StableHLO files, of JAX and of others, become plans that give what the program gives."""

from __future__ import annotations

import json

import alpa_mlir
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import cli, compiler
from alpa_mlir.errors import (
    MicroBatchError,
    ModuleSyntaxError,
    TraceError,
    UnsupportedOpError,
)
from alpa_mlir.stablehlo_file import read_stablehlo

WIDTH, ROWS = 8, 4


def forward(weights, x):
    for first, second in weights:
        x = x + jax.nn.relu(x @ first) @ second
    return x, x.mean()


def train(w, n, x, y):
    def loss(w):
        h = x
        for each in w:
            h = h + jnp.tanh(h @ each)
        return ((h - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), n + 1, value


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(0)
    return [tuple(random.normal(size=(2, WIDTH, WIDTH)).astype(np.float32) * 0.3) for _ in range(4)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory, weights):
    path = tmp_path_factory.mktemp("mlir") / "bare.mlir"
    path.write_text(jax.jit(forward).lower(weights, jnp.ones((ROWS, WIDTH))).as_text())
    assert "loc(" not in path.read_text()
    return path


def by_hand(stages, count=1):
    submeshes = [(1, 2 // stages)] * stages
    return alpa_mlir.PipeshardParallel(submeshes=submeshes, num_micro_batches=count)


@pytest.mark.parametrize(("stages", "count"), [(1, 1), (2, 1), (2, 4)])
def test_a_program_from_elsewhere(stages, count, bare, weights):
    planned = read_stablehlo(bare, method=by_hand(stages, count)).plan("cpu-test")
    assert (len(planned.plan.stages), planned.plan.num_micro_batches) == (stages, count)
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    found = planned.load()(*jax.tree.leaves(weights), x)
    expected = jax.jit(forward)(weights, x)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-5, atol=1e-6)


def test_a_training_step_that_nobody_named(tmp_path):
    w = [jnp.eye(WIDTH) * 0.1 * (i + 1) for i in range(4)]
    random = np.random.default_rng(2)
    x, y = random.normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    arguments = (w, jnp.int32(3), x, y)
    (tmp_path / "train.mlir").write_text(jax.jit(train).lower(*arguments).as_text())
    step = read_stablehlo(
        tmp_path / "train.mlir",
        batches=[5, 6],
        carried={i: i for i in range(5)},
        method=by_hand(2),
    )
    loaded = step.plan("cpu-test").load()
    state, n = w, jnp.int32(3)
    held = (*w, n)
    for _ in range(3):
        state, n, value = jax.jit(train)(state, n, x, y)
        *held, found = loaded(*held, x, y)
        np.testing.assert_allclose(found, value, rtol=1e-5)
    for got, want in zip(held, (*state, n), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_a_file_that_says_all_of_it(tmp_path):
    def step(state, batch):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
        return state - 0.1 * gradient, loss

    w, x = jnp.eye(WIDTH), np.ones((ROWS, WIDTH), np.float32)
    function = alpa_mlir.parallelize(step, cluster="cpu-test", method=by_hand(1, 2))
    traced = function.trace(w, x).traced
    module = compiler.Module(traced.text).annotate(traced.signature.to_json())
    (tmp_path / "told.mlir").write_text(module.as_text(debug_info=True))
    told = read_stablehlo(tmp_path / "told.mlir", method=by_hand(1, 2))
    ours, theirs = told.traced.signature, traced.signature
    assert (ours.inputs, ours.outputs) == (theirs.inputs, theirs.outputs)
    planned = told.plan("cpu-test")
    assert set(planned.plan.stages[0].functions) == {"forward", "backward", "update_0"}
    expected = function.compile(w, x)(w, x)
    for got, want in zip(planned.load()(w, x), expected, strict=True):
        np.testing.assert_array_equal(got, want)


MAIN = "func.func @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<f32>)"
BODY = """ {
  %c = stablehlo.add %a, %b : tensor<4x8xf32>
  %d = stablehlo.constant dense<1.0> : tensor<f32>
  return %c, %d : tensor<4x8xf32>, tensor<f32>
}
"""


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batches": [2]}, TraceError, "there is no argument 2; fix: use 0 to 1"),
        ({"carried": {0: 2}}, TraceError, "there is no result 2; fix: use 0 to 1"),
        ({"carried": {1: 0}}, TraceError, "argument 1 is a batch, but is no state"),
        ({"carried": {0: 1}}, TraceError, "differ in shape or dtype"),
    ],
)
def test_wrong_descriptions(given, error, message, tmp_path):
    (tmp_path / "small.mlir").write_text(MAIN + BODY)
    assert read_stablehlo(tmp_path / "small.mlir").traced.signature.batch_size == 4
    with pytest.raises(error, match=message) as found:
        read_stablehlo(tmp_path / "small.mlir", **given)
    assert found.value.where == str(tmp_path / "small.mlir")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"func.func @main(", ModuleSyntaxError, "small.mlir:1:"),
        (b"\xff\xfe\x00", ModuleSyntaxError, "is neither text in UTF-8 nor MLIR's bytecode"),
        (b"func.func @other() { return }", ModuleSyntaxError, "no function @main"),
        (b"func.func @main() { return }", TraceError, "@main has no arguments"),
        (b"func.func @main(%a: tensor<?xf32>) { return }", TraceError, "argument 0 is tensor<.xf"),
        (b"func.func @main(%a: i32) { return }", TraceError, "argument 0 is i32, expected"),
        (b"func.func @main(%a: tensor<f32>) { return }", TraceError, "has no dimension to split"),
        (b'func.func @main(%a: tensor<1xf32>) { "x.y"() : () -> ()\nreturn }', UnsupportedOpError,
         "unknown op 'x.y'"),
    ],
)  # fmt: skip
def test_wrong_files(text, error, message, tmp_path):
    (tmp_path / "small.mlir").write_bytes(text)
    with pytest.raises(error, match=message):
        read_stablehlo(tmp_path / "small.mlir")


MAPPED = """
func.func public @main(%w: tensor<8x8xf32>, %s: tensor<f32>, %p: tensor<i1>, %x: tensor<4x8xf32>)
    -> (tensor<4x8xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "stablehlo.map"(%0, %x) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %d = stablehlo.multiply %a, %c : tensor<f32>
    %e = stablehlo.tanh %d : tensor<f32>
    %f = stablehlo.compare LT, %b, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %g = stablehlo.select %f, %e, %b : tensor<i1>, tensor<f32>
    stablehlo.return %g : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "stablehlo.if"(%p) ({
    %h = stablehlo.negate %s : tensor<f32>
    stablehlo.return %h : tensor<f32>
  }, {
    stablehlo.return %s : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %1, %2 : tensor<4x8xf32>, tensor<f32>
}
"""


@pytest.mark.parametrize(("count", "taken"), [(1, True), (4, False)])
def test_maps_and_ifs(count, taken, tmp_path):
    path = tmp_path / "map.mlir"
    path.write_text(MAPPED)
    random = np.random.default_rng(3)
    w, x = (random.normal(size=(rows, 8)).astype(np.float32) for rows in (8, 4))
    arguments = (w, np.float32(3), np.array(taken), x)
    planned = read_stablehlo(path, method=by_hand(1, count)).plan("cpu-test")
    found = planned.load()(*arguments)
    product = jnp.tanh(2 * (x @ w))
    np.testing.assert_allclose(found[0], jnp.where(x < 2, product, x), rtol=2e-5, atol=1e-6)
    assert float(found[1]) == (-3 if taken else 3)


def exported_step():
    """A loss whose batch has a size that its export does not know."""

    def scores(w, x):
        rows = jnp.tanh(x @ w).reshape(-1, 4)
        return jnp.sum(rows * jnp.arange(rows.shape[0])[:, None] * 0.01) / x.shape[0]

    rows = jax.export.symbolic_shape("b")[0]
    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (rows, 8)))
    return jax.export.export(jax.jit(scores))(*shapes)


@pytest.mark.parametrize("rows", [4, 8])
def test_exported_functions_of_any_batch(rows):
    """Sizes that the export computes at run time follow from the step's."""
    exported = exported_step()

    def step(w, x):
        return w * 2, exported.call(w, x)

    random = np.random.default_rng(4)
    w, x = (random.normal(size=(size, 8)).astype(np.float32) for size in (8, rows))
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 2)], num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster="cpu-test", method=method, cache=False)
    expected = jax.jit(step)(w, x)
    found = parallel(w, x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_exported_functions_say_which_sizes_they_take():
    rows = jax.export.symbolic_shape("b", constraints=["b >= 8"])[0]
    shape = jax.ShapeDtypeStruct((rows, 8), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: x * 2))(shape)
    text = jax.jit(lambda x: exported.call(x)).lower(jnp.ones((8, 8))).as_text()
    module = compiler.Module(text.replace("8x8", "4x8"))
    with pytest.raises(alpa_mlir.AlpaError, match=r"does not hold: Input shapes .* b >= 8"):
        module.run("alpa-import")


def test_a_file_of_any_number_of_micro_batches(bare):
    step = read_stablehlo(bare)
    plans = [step.plan("cpu-test", by_hand(1, count)).plan for count in (1, 2)]
    assert [plan.num_micro_batches for plan in plans] == [1, 2]
    assert all(step.with_plan(plan).plan is plan for plan in plans)
    with pytest.raises(MicroBatchError, match=r"4 rows cannot be split into 3 equal micro-batches"):
        step.plan("cpu-test", by_hand(1, 3))


def test_a_file_that_couples_examples(tmp_path):
    """Nothing says what is a gradient: whatever needs all examples is made of them in the end."""

    def step(w, x):
        def loss(w):
            h = jnp.tanh(x @ w)
            return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T)))

        return w - jax.grad(loss)(w)

    path = tmp_path / "coupled.mlir"
    w, x = np.random.default_rng(3).normal(size=(2, WIDTH, WIDTH)).astype(np.float32)
    path.write_text(jax.jit(step).lower(w, x).as_text())
    (found,) = read_stablehlo(path, method=by_hand(1, 2)).plan("cpu-test").load()(w, x)
    np.testing.assert_allclose(found, jax.jit(step)(w, x), rtol=1e-5, atol=1e-6)


def test_the_command_line_plans_and_runs_files(bare, tmp_path, capsys):
    words = ["--cluster", "cpu-test", "--micro-batches", "4"]
    words += ["--method", "pipeshard", "--submeshes", "1x1,1x1", "-q"]
    assert cli.main(["plan", str(bare), *words, "-o", str(tmp_path / "plan")]) == 0
    assert "2 stages on 2 devices, 4 micro-batches" in capsys.readouterr().out
    results = []
    for source in ([str(bare), *words], [str(tmp_path / "plan")]):
        assert cli.main(["run", *source, "--steps", "2", "--json"]) == 0
        results.append([row["results"] for row in json.loads(capsys.readouterr().out)["steps"]])
    assert results[0] == results[1]
    assert np.isfinite(results[0][0]["result[1]"])


@pytest.mark.parametrize(
    ("words", "kind", "what"),
    [
        (["--set", "layers=3"], "EntryPointError", "--set for a file"),
        (["--batch-arguments", "99"], "TraceError", "there is no argument 99"),
        (["--micro-batches", "3"], "MicroBatchError", "4 rows cannot be split"),
    ],
)
def test_errors_of_the_command_line(words, kind, what, bare, capsys):
    assert cli.main(["plan", str(bare), *words, "--json", "-q"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == kind
    assert error["what"].startswith(what)


def test_options_of_files(bare, capsys):
    words = ["plan", "x.mlir", "--batch-arguments", "0,3-5", "--carried", "0-2=1-3,7=0"]
    options = cli.parser(only="plan").parse_args(words)
    assert options.batch_arguments == [0, 3, 4, 5]
    assert options.carried == [(0, 1), (1, 2), (2, 3), (7, 0)]
    for words, message in (
        (["--carried", "0-2=1"], "'0-2=1' is no pair such as"),
        (["--carried", "0"], "'' is no whole number"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["plan", str(bare), *words])
        assert message in capsys.readouterr().err


def test_words_that_are_no_text(tmp_path):
    path = tmp_path / "step.mlir"
    for word in ('jax.a = "\\FF"', '"jax.a\\FF" = 1 : i32'):
        path.write_text(
            f"func.func @main(%x: tensor<2xf32> {{{word}}}) -> tensor<2xf32> {{\n"
            "  return %x : tensor<2xf32>\n}\n"
        )
        with pytest.raises(ModuleSyntaxError, match="is no text in UTF-8"):
            read_stablehlo(path)
    path.write_text(
        'func.func @main(%x: tensor<2xf32> {jax.a = "\\C3\\A9"}) -> tensor<2xf32> {\n'
        "  return %x : tensor<2xf32>\n}\n"
    )
    read_stablehlo(path)


@pytest.fixture(scope="module")
def artifact():
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: (jax.numpy.tanh(x @ w) ** 2).mean())(w)
        return w - gradient, loss

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 4), (8, 4))]
    return jax.export.export(jax.jit(step))(*shapes).mlir_module_serialized


def test_a_portable_artifact_is_the_step_that_was_exported(artifact, tmp_path):
    path = tmp_path / "step.mlirbc"
    path.write_bytes(artifact)
    words = ["--cluster", "cpu-test", "--micro-batches", "2", "--carried", "0=0", "-q"]
    assert cli.main(["plan", str(path), *words, "-o", str(tmp_path / "plan")]) == 0
    step = alpa_mlir.load(tmp_path / "plan")
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 4), (8, 4)))
    new, loss = step(w, x)
    np.testing.assert_allclose(loss, (np.tanh(x @ w) ** 2).mean(), rtol=1e-5)
    assert np.abs(np.asarray(new) - w).max() > 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:100],
        lambda data: data[:200] + bytes(50) + data[250:],
        lambda _: b"ML\xefR",
    ],
    ids=["cut", "zeros", "empty"],
)
def test_damaged_artifacts(artifact, tmp_path, damage):
    path = tmp_path / "step.mlirbc"
    path.write_bytes(damage(artifact))
    with pytest.raises(ModuleSyntaxError, match="no portable artifact that JAX can read"):
        read_stablehlo(path)
