// RUN: alpa-opt %s -alpa-import -alpa-cluster-layers=layers=2 | FileCheck %s --check-prefix=LAYERS
// RUN: alpa-opt %s -alpa-import -alpa-cluster-layers=layers=2 -alpa-search-stages="cluster=p3.16xlarge:1 submeshes=1x1,1x1" \
// RUN:   -alpa-slice-stages -alpa-insert-reshards -alpa-verify-sharding -alpa-build-schedule -alpa-verify-program | FileCheck %s --check-prefix=STAGES
// RUN: alpa-opt %s -alpa-import -alpa-cluster-layers=layers=2 -alpa-search-stages="cluster=p3.16xlarge:1 submeshes=1x1,1x1 schedule=inference" | FileCheck %s --check-prefix=TIME

// StableHLO from elsewhere: no names in locations, no attributes, a private function. All of it
// is forward, and every op is an equation.

// LAYERS: func.func public @main(%arg0: tensor<8x16xf32> {alpa.kind = "state"}
// LAYERS: dot_general {{.*}}alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"
// LAYERS: maximum {{.*}}alpa.layer = 0 :
// LAYERS: dot_general {{.*}}alpa.layer = 1 :

// The schedule of forwards may be asked for by name.
// TIME: step_seconds = {{[0-9.eE-]+}} : f64

// STAGES: module @stage_0
// STAGES: func.func @forward
// STAGES-NOT: @backward
// STAGES: module @stage_1
// STAGES: func.func @forward
// STAGES-NOT: @backward
// STAGES: alpa.program @mesh_0 on 0
// STAGES: alpa.send {{.*}} to 1
module @elsewhere {
  func.func public @main(%x: tensor<8x16xf32>, %w0: tensor<16x16xf32>, %w1: tensor<16x16xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %1 = func.call @relu(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %3 = func.call @relu(%2) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %3 : tensor<8x16xf32>
  }
  func.func private @relu(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1 = stablehlo.maximum %x, %0 : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
}
