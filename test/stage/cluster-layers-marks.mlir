// RUN: alpa-opt %s -alpa-cluster-layers | FileCheck %s --check-prefixes=CHECK,MARKED
// RUN: alpa-opt %s -alpa-cluster-layers=boundaries=5 | FileCheck %s --check-prefixes=CHECK,HAND
// RUN: alpa-opt %s -alpa-cluster-layers 2>&1 | FileCheck %s --check-prefix=WARN

// A layer begins at equation 3. Nothing comes before the mark at 0; the one at 4 stands within
// an equation.

// WARN: warning: {{.*}}this layer boundary cuts nothing

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  // CHECK-NOT: optimization_barrier
  %0 = stablehlo.optimization_barrier {alpa.boundary, alpa.eqn = 0 : i64, alpa.phase = "forward"} %x : tensor<4xf32>
  // CHECK: sine %arg0 {alpa.eqn = 1 : i64, alpa.layer = 0 :
  %1 = stablehlo.sine %0 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %2 = stablehlo.optimization_barrier {alpa.boundary, alpa.eqn = 2 : i64, alpa.phase = "forward"} %1 : tensor<4xf32>
  // MARKED: cosine %{{.*}}alpa.layer = 1 :
  // HAND: cosine %{{.*}}alpa.layer = 0 :
  %3 = stablehlo.cosine %2 {alpa.eqn = 3 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %4 = stablehlo.negate %3 {alpa.eqn = 4 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %5 = stablehlo.optimization_barrier {alpa.boundary, alpa.eqn = 4 : i64, alpa.phase = "forward"} %4 : tensor<4xf32>
  // MARKED: abs %{{.*}}alpa.layer = 1 :
  // HAND: abs %{{.*}}alpa.layer = 0 :
  %6 = stablehlo.abs %5 {alpa.eqn = 4 : i64, alpa.phase = "forward"} : tensor<4xf32>
  // MARKED: sqrt %{{.*}}alpa.layer = 1 :
  // HAND: sqrt %{{.*}}alpa.layer = 1 :
  %7 = stablehlo.sqrt %6 {alpa.eqn = 5 : i64, alpa.phase = "forward"} : tensor<4xf32>
  return %7 : tensor<4xf32>
}
