"""A further input is added to the rows of a stack where a loop makes them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from alpa_runtime.backends.xla import compile_text
from alpa_runtime.execution.compilation import split_functions
from per_device import mesh_of

STACK = "tensor<4x2xf32>"
TEXT = """
module {{
  func.func @f(%x: tensor<1x2xf32>) -> ({types}) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %number = stablehlo.constant dense<{init}> : tensor<f32>
    %begin = stablehlo.broadcast_in_dim %number, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
    %w:3 = stablehlo.while(%i = %zero, %h = %x, %s = %begin)
        : tensor<i32>, tensor<1x2xf32>, tensor<4x2xf32>
    cond {{
      %n = stablehlo.constant dense<3> : tensor<i32>
      %more = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %h, %h : tensor<1x2xf32>
      %at = {at} : tensor<i32>
      %put = stablehlo.dynamic_update_slice %s, %next, %at, %zero
          : (tensor<4x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %next, %put : tensor<i32>, tensor<1x2xf32>, tensor<4x2xf32>
    }}
    %row = stablehlo.constant dense<{behind}> : tensor<i32>
    %all = stablehlo.dynamic_update_slice %w#2, %x, %row, %zero
        : (tensor<4x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<4x2xf32>
    return {results} : {types}
  }}
}}
"""
IN_ORDER = "stablehlo.add %i, %zero"
CASES = {
    "in order": (True, {}),
    "reversed": (True, {"at": "stablehlo.subtract %two, %i"}),
    "behind the first": (True, {"at": "stablehlo.add %i, %one", "behind": 0}),
    "a row again": (False, {"behind": 2}),
    "one row": (False, {"at": "stablehlo.add %zero, %one"}),
    "other steps": (False, {"at": "stablehlo.multiply %i, %one"}),
    "beyond the end": (False, {"at": "stablehlo.add %i, %two", "behind": 0}),
    "no zeros": (False, {"init": 1.0}),
    "read by another": (False, {"results": "%all, %all", "types": f"{STACK}, {STACK}"}),
    "its rows are read": (False, {"results": "%all, %w#2", "types": f"{STACK}, {STACK}"}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_sum_is_and_where(name):
    is_inside, changes = CASES[name]
    given = {"at": IN_ORDER, "init": 0.0, "behind": 3, "results": "%all", "types": STACK}
    text = TEXT.format(**(given | changes))
    alone = split_functions(text, {}, "alone")["f"].text
    summed = split_functions(text, {}, "summed", {"f": [0]})["f"].text
    whole_sums = [x for x in summed.splitlines() if "stablehlo.add" in x and x.endswith(STACK)]
    assert len(whole_sums) == (0 if is_inside else 1)

    def run(text, *arguments):
        devices = jax.devices()[:1]
        program = compile_text(text, mesh_of((1,)))
        return np.asarray(program.execute([jax.device_put(x, devices[0]) for x in arguments])[0])

    x, further = np.array([[1, -3]], np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(run(summed, x, further), further + run(alone, x))
