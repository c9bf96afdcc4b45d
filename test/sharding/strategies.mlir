// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=4 -o /dev/null 2>&1 | FileCheck %s --check-prefix=ONE
// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=2,2 -o /dev/null 2>&1 | FileCheck %s --check-prefix=TWO
// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=1,4 -o /dev/null 2>&1 | FileCheck %s --check-prefix=LINE

// On one axis: by batch, rows, columns, or the contracted dimension, whose sums are
// repeated on all devices or scattered over any of the result's dimensions. Never
// replicated.
// ONE: ([S0, R, R], [S0, R, R]) -> [S0, R, R]{{$}}
// ONE: ([R, S0, R], [R, R, R]) -> [R, S0, R]{{$}}
// ONE: ([R, R, R], [R, R, S0]) -> [R, R, S0]{{$}}
// ONE: ([R, R, S0], [R, S0, R]) -> [R, R, R] all-reduce 0 of 4096{{$}}
// ONE: ([R, R, S0], [R, S0, R]) -> [S0, R, R] reduce-scatter 0 of 4096{{$}}
// ONE: ([R, R, S0], [R, S0, R]) -> [R, S0, R] reduce-scatter 0 of 4096{{$}}
// ONE: ([R, R, S0], [R, S0, R]) -> [R, R, S0] reduce-scatter 0 of 4096{{$}}
// ONE-NOT: remark

// TWO-DAG: ([S0, S1, R], [S0, R, R]) -> [S0, S1, R]{{$}}
// TWO-DAG: ([S1, S0, R], [S1, R, R]) -> [S1, S0, R]{{$}}
// TWO-DAG: ([S01, R, R], [S01, R, R]) -> [S01, R, R]{{$}}
// TWO-DAG: ([S0, R, S1], [S0, S1, R]) -> [S0, R, R] all-reduce 1 of 2048{{$}}
// TWO-DAG: ([S0, R, S1], [S0, S1, R]) -> [S0, S1, R] reduce-scatter 1 of 2048{{$}}
// TWO-DAG: ([S0, R, S1], [S0, S1, R]) -> [S01, R, R] reduce-scatter 1 of 2048{{$}}
// TWO-DAG: ([R, R, S01], [R, S01, R]) -> [R, S01, R] reduce-scatter 0 of 4096 reduce-scatter 1 of 2048{{$}}
// TWO-DAG: ([R, R, S01], [R, S01, R]) -> [R, R, R] all-reduce 0 of 4096 all-reduce 1 of 4096{{$}}

// An axis of size 1 is not used.
// LINE-NOT: S0
// LINE: ([S1, R, R], [S1, R, R]) -> [S1, R, R]{{$}}
// LINE-NOT: S0
func.func @batched(%x: tensor<4x8x16xf32>, %y: tensor<4x16x32xf32>) -> tensor<4x8x32xf32> {
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x32xf32>) -> tensor<4x8x32xf32>
  return %0 : tensor<4x8x32xf32>
}
