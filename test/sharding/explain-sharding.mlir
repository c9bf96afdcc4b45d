// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=2 most=3" | FileCheck %s
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=zero-3 micro-batches=3" -o %t.mlir
// RUN: %python %S/Inputs/check_explanation.py %t.mlir
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 op=tanh" | FileCheck %s --check-prefix=ONE

// CHECK: a step takes {{.*}} of computation, {{.*}} of communication, {{.*}} as the price of held bytes
// CHECK-NEXT: the problem's objective is {{.*}}; {{.*}} no choice can change
// CHECK: communication
// The gradient's sum waits for both micro-batches.
// CHECK-NEXT: all_reduce axis 1 1 times 0.016 MB
// CHECK: ops by cost, 3 of
// CHECK: computing {{.*}} communicating stablehlo.dot_general {{.*}}, forward
// CHECK-NEXT: ([S1, R], [R, R]) -> [S1, R]
// CHECK: decisions by cost, 3 of
// CHECK: stablehlo.dot_general line {{[0-9]+}}, forward: one of
// CHECK-NEXT: chosen ([S1, R], [R, R]) -> [S1, R]
// CHECK-NEXT: runner-up {{.*}} -> {{.*}}: the step takes {{[0-9.]+}} {{us|ms}} more
// CHECK: alpa.explanation = {
// CHECK-SAME: layer = 3 : i64
// CHECK-SAME: reads = ["1", "0"], {{[^}]*}} types = "(65536x64xf32, 64x64xf32) -> 65536x64xf32"
// CHECK-SAME: ops = [{{.*}} op = "stablehlo.tanh", {{[^}]*}} types = "(65536x64xf32) -> 65536x64xf32"

// ONE: ops by cost, 1 of 1
// ONE: stablehlo.tanh
// ONE: decisions by cost, 0 of 0
func.func @main(%w: tensor<64x64xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}, %x: tensor<65536x64xf32> {alpa.kind = "batch"}) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.layer = 3 : i64, alpa.phase = "forward"} : (tensor<65536x64xf32>, tensor<64x64xf32>) -> tensor<65536x64xf32>
  %1 = stablehlo.tanh %0 {alpa.phase = "forward"} : tensor<65536x64xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<65536x64xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
  %3 = stablehlo.subtract %w, %2 {alpa.phase = "update"} : tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}
