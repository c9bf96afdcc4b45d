"""Stages that IREE compiles give XLA's results, on JAX's own buffers."""

from __future__ import annotations

import gc

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_schedule_equality as equality
from alpa_mlir import PipeshardParallel, errors
from alpa_runtime.backends import iree, make_backend
from alpa_runtime.backends.interface import Job
from alpa_runtime.backends.xla import XlaBackend
from alpa_runtime.cache import CompiledCache
from alpa_runtime.execution.compilation import compile_jobs
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.plan.tensor import TensorSpec
from handmade import flat

pytest.importorskip("iree.compiler")


def one_device(device=0):
    return jax.sharding.Mesh(np.array([[jax.devices()[device]]]), ("x", "y"))


def whole(shape, dtype):
    return TensorSpec(tuple(shape), dtype, ((),) * len(shape))


def job_of(function, *args, **options):
    """A function of arrays as a job on mesh 0."""
    jitted = jax.jit(function, keep_unused=True, **options)
    forms = [
        jax.tree.map(lambda x: whole(x.shape, str(x.dtype)), tree)
        for tree in (list(args), list(jax.eval_shape(function, *args)))
    ]
    return Job("piece", jitted.lower(*args).as_text(), 0, *map(tuple, forms))


def build(job, device=0):
    (program,) = compile_jobs([job], [one_device(device)], None, make_backend("iree"))
    return program


@pytest.fixture
def compiled(monkeypatch):
    """What IREE really compiles."""
    labels, compile_one = [], iree.compile_binary

    def compile_binary(text, target, where):
        labels.append(where)
        return compile_one(text, target, where)

    monkeypatch.setattr(iree, "compile_binary", compile_binary)
    return labels


def test_steps_equal_those_of_xla(tmp_path, compiled):
    plan = handmade.as_plan(*handmade.two_stages(2, first=(1, 1), second=(1, 1)))
    step = load(plan, backend="iree", cache=tmp_path)
    assert len(compiled) == 6
    state, batch = handmade.arguments(2)
    expected = jax.device_get(state)
    before = None
    for _ in range(3):
        w0, w1, loss, h = step(flat(state, batch))
        expected, expected_loss, expected_h = jax.jit(handmade.reference_step)(expected, batch)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
        np.testing.assert_allclose(h, expected_h, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(w0, expected["w0"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(w1, expected["w1"], rtol=1e-4, atol=1e-6)
        if before is not None:  # State is used up, as it is with XLA.
            assert before["w0"].is_deleted()
            assert before["w1"].is_deleted()
        state = before = {"w0": w0, "w1": w1}
    step(flat(state, batch))
    with pytest.raises(errors.ArgumentMismatchError, match="earlier step"):
        step(flat(state, batch))
    assert all(size > 0 for size in step.memory_bytes().values())
    again = load(plan, backend="iree", cache=tmp_path)
    assert len(compiled) == 6
    state, batch = handmade.arguments(2)
    np.testing.assert_array_equal(again(flat(state, batch))[2], load(plan)(flat(state, batch))[2])


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16"]
DTYPES += ["float32", "complex64"]


def test_dtypes_and_shapes():
    """Each of them in and out: computed, constant, the argument itself, reshaped, empty, scalar."""
    rng = np.random.default_rng(0)
    args = [
        jnp.asarray(rng.integers(0, 100, (3, 4)), dtype)
        if dtype != "bool"
        else jnp.asarray(rng.integers(0, 2, (3, 4)), bool)
        for dtype in DTYPES
    ]

    def function(*args):
        results = []
        for x in args:
            results += [~x if x.dtype == bool else x + x, x, x.reshape(2, 6), x[:0], x[1, 2]]
            results.append(jnp.ones((2,), x.dtype))
        return tuple(results)

    program = build(job_of(function, *args), device=3)
    given = [jax.device_put(x, jax.devices()[3]) for x in args]
    results = program.call(given)
    expected = [np.asarray(x) for x in function(*args)]
    for x in given:  # What results share with arguments outlives these.
        x.delete()
    del given
    gc.collect()
    junk = [jnp.full((3, 4), i) for i in range(100)]
    for found, wanted in zip(results, expected, strict=True):
        assert found.devices() == {jax.devices()[3]}
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found), wanted)
    del junk


def test_results_outlive_their_program():
    x = jnp.arange(1 << 16, dtype=jnp.float32)
    program = build(job_of(lambda x: (x + 1,), x))
    results = [program.call([x + i])[0] for i in range(20)]
    del program
    gc.collect()
    for i, result in enumerate(results):
        np.testing.assert_array_equal(np.asarray(result), np.arange(1 << 16) + i + 1)


@pytest.mark.parametrize("mine", [True, False])
def test_results_can_be_given_to_xla(mine):
    """A program of XLA that takes over a buffer changes no array that shares it."""
    x = jnp.arange(1024.0)
    kept, same = build(job_of(lambda x: (x * 2, x), x)).call([x])
    taken = jax.jit(lambda x: x + 1, donate_argnums=0)(same if mine else x)
    np.testing.assert_array_equal(np.asarray(taken), np.arange(1024.0) + 1)
    other = x if mine else same
    np.testing.assert_array_equal(np.asarray(other), np.arange(1024.0))
    np.testing.assert_array_equal(np.asarray(kept), np.arange(1024.0) * 2)


def test_float64_is_not_rounded():
    with jax.enable_x64(True):
        x = jnp.asarray([1.0, 1 + 1e-12], jnp.float64)
        big = jnp.asarray([2**40 + 1], jnp.int64)
        difference, sum_ = build(job_of(lambda x, n: (x[1] - x[0], n + n), x, big)).call([x, big])
        assert abs(float(difference) - 1e-12) < 1e-15
        assert int(sum_[0]) == 2**41 + 2


def test_meshes_of_several_devices_are_refused():
    plan = handmade.as_plan(*handmade.two_stages(1, first=(1, 2), second=(1, 1)))
    with pytest.raises(errors.BackendError) as error:
        load(plan, backend="iree", cache=False)
    assert str(error.value).startswith("stage 0 ")
    assert "IREE runs stages on one device, this one has 2; fix: use backend=" in str(error.value)


def test_unknown_backend():
    plan = handmade.as_plan(*handmade.two_stages(1))
    with pytest.raises(errors.BackendError, match="backend 'tvm'; fix: use one of auto, xla, iree"):
        load(plan, backend="tvm")


def test_missing_package(monkeypatch):
    def version(name):
        raise iree.PackageNotFoundError(name)

    monkeypatch.setattr(iree, "version", version)
    with pytest.raises(errors.BackendError) as error:
        make_backend("iree")
    assert str(error.value).endswith("is not installed; fix: pip install 'alpa-mlir[iree]'")


def test_what_iree_cannot_compile():
    x = jnp.eye(4)
    job = job_of(lambda x: (jnp.linalg.cholesky(x),), x)
    with pytest.raises(errors.BackendError, match=r"piece: IREE cannot compile it for host: .*"):
        build(job)


def test_damaged_binary_is_made_again(tmp_path, compiled):
    x = jnp.arange(4.0)
    job = job_of(lambda x: (x * 3,), x)
    backend = iree.IreeBackend(CompiledCache(tmp_path))
    backend.build([job], [one_device()])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="compiled again"):
        (program,) = backend.build([job], [one_device()])
    np.testing.assert_array_equal(program.call([x])[0], np.arange(4.0) * 3)
    assert len(compiled) == 2


class Compared:
    """A program of XLA that compares each call with IREE's."""

    def __init__(self, xla, iree, label, calls):
        self.xla, self.iree, self.label, self.calls = xla, iree, label, calls

    def call(self, args):
        copies = [jax.device_put(np.array(x), x.sharding) for x in args]
        found = [np.asarray(x) for x in self.iree.call(copies)]
        results = self.xla.call(args)
        for i, (a, b) in enumerate(zip(found, results, strict=True)):
            b = np.asarray(b)
            assert a.dtype == b.dtype
            if a.dtype == bool:  # A comparison with what is nearly 0 may turn out otherwise.
                assert np.mean(a != b) <= 1e-3, (self.label, i)
            elif a.size:
                a, b = a.astype(np.float64), b.astype(np.float64)
                assert np.max(np.abs(a - b)) <= 1e-4 * max(np.max(np.abs(b)), 1e-3), (self.label, i)
        self.calls.append(self.label)
        return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "export"), [*[(name, "shardy") for name in equality.MODELS], ("gpt", "collectives")]
)
def test_zoo_stages_equal_those_of_xla(name, export, monkeypatch):
    """Every function of a step, on the values that it gets there."""
    model = equality.model(name)
    state, batch = model.init()
    method = PipeshardParallel(num_micro_batches=2, submeshes=[(1, 1), (1, 1)], export=export)
    function = alpa_mlir.parallelize(model.step, cluster=equality.CLUSTER, method=method)
    planned = function.plan(state, batch)
    calls, other, build = [], make_backend("iree"), XlaBackend.build

    def build_both(self, jobs, meshes):
        made = build(self, jobs, meshes)
        if not jobs[0].of_stage:
            return made
        iree_made = other.build(jobs, meshes)
        return [
            Compared(*row, calls)
            for row in zip(made, iree_made, [job.label for job in jobs], strict=True)
        ]

    monkeypatch.setattr(XlaBackend, "build", build_both)
    step = planned.load(backend="xla")
    for _ in range(2):
        state, _ = step(state, batch)
    functions = {f"stage {i} {f}" for i, s in enumerate(planned.plan.stages) for f in s.functions}
    assert set(calls) == functions
