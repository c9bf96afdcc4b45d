// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4 most=0" -o /dev/null | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4" -alpa-insert-reshards -alpa-verify-sharding | FileCheck %s --check-prefix=DONE

// A loop is split as the pins of its body say; what does not agree with one before is dropped.

// CHECK: sharding constraints, which cost
// CHECK-NEXT: step.py:1 P('data', 'model'), 1 values: held as [S0, S1]
// CHECK-NEXT: step.py:2 P('model', None), 1 values: dropped, since the loop or branch that it stands in is split otherwise

// DONE: stablehlo.while
// DONE-NOT: optimization_barrier
// DONE: stablehlo.tanh {{.*}}alpa.shardings = [#alpa.sharding<[S0, S1]>]
// DONE-NOT: optimization_barrier
// DONE: return

module attributes {alpa.pin_axes = [[["data", 2], ["model", 4]]]} {
func.func @main(%x: tensor<64x64xf32> {alpa.kind = "state"}) -> tensor<64x64xf32> {
  %zero = stablehlo.constant {alpa.phase = "forward"} dense<0> : tensor<i32>
  %0:2 = "stablehlo.while"(%zero, %x) ({
  ^bb0(%i: tensor<i32>, %a: tensor<64x64xf32>):
    %end = stablehlo.constant dense<8> : tensor<i32>
    %1 = "stablehlo.compare"(%i, %end) {comparison_direction = #stablehlo<comparison_direction LT>} : (tensor<i32>, tensor<i32>) -> tensor<i1>
    "stablehlo.return"(%1) : (tensor<i1>) -> ()
  }, {
  ^bb0(%i: tensor<i32>, %a: tensor<64x64xf32>):
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = "stablehlo.optimization_barrier"(%a) {alpa.pin = #alpa.sharding<[S0, S1]>} : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("step.py":1:1)
    %3 = stablehlo.tanh %2 : tensor<64x64xf32>
    %4 = "stablehlo.optimization_barrier"(%3) {alpa.pin = #alpa.sharding<[S1, R]>} : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("step.py":2:1)
    "stablehlo.return"(%1, %4) : (tensor<i32>, tensor<64x64xf32>) -> ()
  }) {alpa.phase = "forward"} : (tensor<i32>, tensor<64x64xf32>) -> (tensor<i32>, tensor<64x64xf32>)
  return %0#1 : tensor<64x64xf32>
}
}
