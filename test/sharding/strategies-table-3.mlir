// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=2,2 -o /dev/null 2>&1 | FileCheck %s --check-prefix=PLANE
// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=2,2,2 -o /dev/null 2>&1 | FileCheck %s --check-prefix=CUBE
// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=2,2 -o /dev/null 2>&1 | not grep -F -e '([R, R, R], [R, R, R])' -e '([S0, R, R], [S0, R, R])' -e '([R, S0, R], [R, R, R])'
// RUN: alpa-opt %s -alpa-test-strategies=mesh-shape=2,2,2 -o /dev/null 2>&1 | not grep -F '([S012'

// Table 3 of the Alpa paper: C[b,i,j] = sum over k of A[b,i,k] B[b,k,j] on a mesh with axes
// 0 and 1. Each row is a mapping of loops to axes; specs and communication follow. C has
// M = 4 * 8 * 32 * 4 = 4096 bytes; a row's sum is of M over the pieces of the output.
// 1: i to 0, j to 1
// PLANE-DAG: remark: ([R, S0, R], [R, R, S1]) -> [R, S0, S1]{{$}}
// 2: i to 0, k to 1
// PLANE-DAG: remark: ([R, S0, S1], [R, S1, R]) -> [R, S0, R] all-reduce 1 of 2048{{$}}
// 3: j to 0, k to 1
// PLANE-DAG: remark: ([R, R, S1], [R, S1, S0]) -> [R, R, S0] all-reduce 1 of 2048{{$}}
// 4: b to 0, i to 1
// PLANE-DAG: remark: ([S0, S1, R], [S0, R, R]) -> [S0, S1, R]{{$}}
// 5: b to 0, k to 1
// PLANE-DAG: remark: ([S0, R, S1], [S0, S1, R]) -> [S0, R, R] all-reduce 1 of 2048{{$}}
// 6: i to 0 and 1
// PLANE-DAG: remark: ([R, S01, R], [R, R, R]) -> [R, S01, R]{{$}}
// 7: k to 0 and 1
// PLANE-DAG: remark: ([R, R, S01], [R, S01, R]) -> [R, R, R] all-reduce 0 of 4096 all-reduce 1 of 4096{{$}}

// The same with the axes exchanged, the remaining pairs of loops, and a loop on both axes.
// PLANE-DAG: remark: ([R, S1, R], [R, R, S0]) -> [R, S1, S0]{{$}}
// PLANE-DAG: remark: ([R, S1, S0], [R, S0, R]) -> [R, S1, R] all-reduce 0 of 2048{{$}}
// PLANE-DAG: remark: ([R, R, S0], [R, S0, S1]) -> [R, R, S1] all-reduce 0 of 2048{{$}}
// PLANE-DAG: remark: ([S1, S0, R], [S1, R, R]) -> [S1, S0, R]{{$}}
// PLANE-DAG: remark: ([S1, R, S0], [S1, S0, R]) -> [S1, R, R] all-reduce 0 of 2048{{$}}
// PLANE-DAG: remark: ([S0, R, R], [S0, R, S1]) -> [S0, R, S1]{{$}}
// PLANE-DAG: remark: ([S1, R, R], [S1, R, S0]) -> [S1, R, S0]{{$}}
// PLANE-DAG: remark: ([S01, R, R], [S01, R, R]) -> [S01, R, R]{{$}}
// PLANE-DAG: remark: ([R, R, R], [R, R, S01]) -> [R, R, S01]{{$}}

// No axis is left idle, and the batch of 4 does not make eight pieces: no such lines.

// Three axes: a loop each, sums over one, two and all of them, two axes for one loop.
// CUBE-DAG: remark: ([S0, S1, R], [S0, R, S2]) -> [S0, S1, S2]{{$}}
// CUBE-DAG: remark: ([S2, S0, R], [S2, R, S1]) -> [S2, S0, S1]{{$}}
// CUBE-DAG: remark: ([S0, S1, S2], [S0, S2, R]) -> [S0, S1, R] all-reduce 2 of 1024{{$}}
// CUBE-DAG: remark: ([R, S01, S2], [R, S2, R]) -> [R, S01, R] all-reduce 2 of 1024{{$}}
// CUBE-DAG: remark: ([S02, S1, R], [S02, R, R]) -> [S02, S1, R]{{$}}
// CUBE-DAG: remark: ([R, S0, S12], [R, S12, R]) -> [R, S0, R] all-reduce 1 of 2048 all-reduce 2 of 2048{{$}}
// CUBE-DAG: remark: ([R, R, S012], [R, S012, R]) -> [R, R, R] all-reduce 0 of 4096 all-reduce 1 of 4096 all-reduce 2 of 4096{{$}}
// CUBE-DAG: remark: ([R, S012, R], [R, R, R]) -> [R, S012, R]{{$}}
func.func @batched(%x: tensor<4x8x16xf32>, %y: tensor<4x16x32xf32>) -> tensor<4x8x32xf32> {
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<4x8x16xf32>, tensor<4x16x32xf32>) -> tensor<4x8x32xf32>
  return %0 : tensor<4x8x32xf32>
}
