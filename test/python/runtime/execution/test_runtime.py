"""Plans written by hand run as the single-device step does, for every schedule and mesh."""

from __future__ import annotations

import copy

import handmade
import jax
import numpy as np
import pytest
from alpa_mlir import errors
from alpa_runtime.devices import use_virtual_devices
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import Accumulate, Copy, Run, merge_step
from handmade import flat

MESHES = [((1, 2), (1, 2)), ((2, 2), (1, 2)), ((1, 1), (2, 2)), ((1, 1), (1, 1)), ((4, 1), (1, 4))]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("first", "second", "micro_batches"),
    [(*MESHES[0], n) for n in (1, 2, 4)] + [(*mesh, 3) for mesh in MESHES[1:]],
)
def test_equals_single_device(first, second, micro_batches, schedule):
    plan = handmade.as_plan(*handmade.two_stages(micro_batches, schedule, first, second))
    step = load(plan)
    state = handmade.check_steps(step, micro_batches)
    assert len(state["w0"].sharding.device_set) == first[0] * first[1]
    assert len(state["w1"].sharding.device_set) == second[0] * second[1]


def test_many_steps_stay_bounded():
    plan = handmade.as_plan(*handmade.two_stages(4))
    step = load(plan, max_in_flight=3)
    state, batch = handmade.arguments(4)
    losses = []
    for _ in range(50):
        w0, w1, loss, _ = step(flat(state, batch))
        state = {"w0": w0, "w1": w1}
        losses.append(loss)
        assert len(step._bound.flight.started) <= 3
    assert float(losses[-1]) < 0.8 * float(losses[0])


@pytest.mark.parametrize(("first", "second"), [*MESHES[:4], ((2, 1), (1, 2))])
def test_state_is_donated_and_passed_through(first, second):
    step = load(handmade.as_plan(*handmade.two_stages(2, first=first, second=second)))
    state, batch = handmade.arguments(2)
    state = jax.tree.map(jax.numpy.asarray, state)
    first = step(flat(state, batch))
    for array in state.values():  # the caller's arrays were copied to the mesh
        assert not array.is_deleted()
    second = step([*first[:2], batch["x"], batch["y"]])
    assert first[0].is_deleted()
    assert first[1].is_deleted()
    assert not second[0].is_deleted()
    with pytest.raises(errors.ArgumentMismatchError, match=r"state\['w0'\]: .*earlier step"):
        step([*first[:2], batch["x"], batch["y"]])


MADE_OF_STATE = {
    "copy": jax.numpy.copy,
    "deep copy": copy.deepcopy,
    "product": lambda x: x * 1,
    "compiled": jax.jit(lambda x: 0.5 * x),
    "placed alike": lambda x: jax.device_put(np.asarray(x), x.sharding),
}


@pytest.mark.parametrize("name", MADE_OF_STATE)
def test_what_is_made_of_state_is_not_used_up(name):
    """It has the very sharding of a state that a step returned."""
    step = load(handmade.as_plan(*handmade.two_stages(2)))
    state, batch = handmade.arguments(2)
    found = step(flat(state, batch))
    found = step([*found[:2], batch["x"], batch["y"]])
    own = [MADE_OF_STATE[name](x) for x in found[:2]]
    first = step([*own, batch["x"], batch["y"]])
    again = step([*own, batch["x"], batch["y"]])
    assert not any(x.is_deleted() for x in own)
    np.testing.assert_array_equal(first[0], again[0])
    step([*first[:2], batch["x"], batch["y"]])
    assert first[0].is_deleted()


def test_state_is_kept_on_request():
    step = load(handmade.as_plan(*handmade.two_stages(2)), donate_state=False)
    state, batch = handmade.arguments(2)
    first = step(flat(state, batch))
    again = [step([*first[:2], batch["x"], batch["y"]]) for _ in range(2)]
    assert not first[0].is_deleted()
    np.testing.assert_array_equal(again[0][0], again[1][0])


def test_one_array_given_twice_is_not_donated_twice():
    """Two leaves of the state may be one array."""
    plan, modules = handmade.two_stages(1, first=(1, 1), second=(1, 1))
    step = load(handmade.as_plan(plan, modules))
    state, batch = handmade.arguments(1)
    placed = step(flat(state, batch))
    x = jax.device_put(batch["x"], placed[0].sharding)
    results = step([placed[0], placed[1], x, batch["y"]])
    assert np.isfinite(results[2])
    assert not x.is_deleted()


def test_batch_may_be_device_arrays_or_host_arrays():
    step = load(handmade.as_plan(*handmade.two_stages(4)), donate_state=False)
    state, batch = handmade.arguments(4)
    host = step(flat(state, batch))
    device = step(flat(state, jax.tree.map(jax.numpy.asarray, batch)))
    np.testing.assert_array_equal(host[2], device[2])


def test_host_batch_may_be_overwritten_after_the_call():
    step = load(handmade.as_plan(*handmade.two_stages(2)), donate_state=False)
    state, batch = handmade.arguments(2)
    expected = float(step(flat(state, batch))[2])
    loss = step(flat(state, batch))[2]
    batch["x"][:] = 1e6
    assert float(loss) == expected


def test_linear_step_folds_accumulations_and_donates():
    plan = handmade.as_plan(*handmade.two_stages(4))
    linear = merge_step(plan)
    assert not [a for a in linear.actions if isinstance(a, Accumulate)]
    runs = [a for a in linear.actions if isinstance(a, Run) and a.micro_batch is not None]
    assert {(a.stage, a.function, a.sums) for a in runs} == {
        (0, "forward", ()),
        (0, "backward", (0,)),
        (1, "forward", ()),
        (1, "backward", (0, 1)),
    }
    assert len([a for a in linear.actions if isinstance(a, Copy)]) == 8
    assert donations(plan, linear, True)[0, "update_0"] == ((0, 0),)
    # without the caller's weights, the gradient's buffer becomes the new weights
    assert donations(plan, linear, False)[0, "update_0"] == ((1, 0),)
    assert donations(plan, linear, True)[0, "forward"] == ()
    made: set[int] = set()
    for action in linear.actions:
        if isinstance(action, Run):
            made.update(action.outputs)
    assert len(made) == sum(len(a.outputs) for a in linear.actions if isinstance(a, Run))


def test_as_text():
    plan = handmade.as_plan(*handmade.two_stages(2))
    table = plan.as_text()
    assert "2 stages on 4 devices, 2 micro-batches, schedule 1f1b" in table
    assert "state['w0'] 8x16 [R, y]" in table
    assert "1x2 on devices 2-3" in table
    text = load(plan).as_text()
    assert "run stage 1 backward micro-batch 1" in text
    assert "run stage 1 backward micro-batch 1, adding up 2 results" in text


def test_wrong_arguments_are_named():
    step = load(handmade.as_plan(*handmade.two_stages(2)))
    state, batch = handmade.arguments(2)
    args = flat(state, batch)
    with pytest.raises(
        errors.ArgumentMismatchError, match=r"batch\['x'\]: shape \[8, 8\].*\[16, 8\]"
    ):
        step([*args[:2], batch["x"][:8], batch["y"]])
    with pytest.raises(errors.ArgumentMismatchError, match=r"state\['w0'\]: dtype int32.*float32"):
        step([state["w0"].astype(np.int32), *args[1:]])
    with pytest.raises(errors.ArgumentMismatchError, match="3 arguments, expected 4"):
        step(args[:3])


def test_wrong_devices():
    plan = handmade.as_plan(*handmade.two_stages(1))
    with pytest.raises(errors.DevicesError, match=r"needs 4 devices, JAX has 3.*use_virtual"):
        load(plan, devices=jax.devices()[:3])
    with pytest.raises(errors.DevicesError, match="is given twice; fix: give each device"):
        load(plan, devices=[jax.devices()[0]] * 4)


def test_virtual_devices():
    assert len(use_virtual_devices(4)) == 4
    with pytest.raises(errors.DevicesError, match="8 cpu devices, 64 wanted; fix: call it before"):
        use_virtual_devices(64)
    with pytest.raises(errors.DevicesError, match=r"100000 virtual .*; fix: ask for at most 1024"):
        use_virtual_devices(100000)
