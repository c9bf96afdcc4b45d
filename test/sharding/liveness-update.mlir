// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | FileCheck %s

// An optimizer takes each of its steps for all weights before the next step. What
// is between the steps (%d and %m, read twice each and too dear to be computed twice)
// is counted for one weight at a time: two values of 4 MiB.
// CHECK: alpa.predicted = {{.*}} state_bytes = 25165824 : i64, temporary_bytes = 8388608 : i64
func.func @main(%w0: tensor<1024x1024xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
                %w1: tensor<1024x1024xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64},
                %w2: tensor<1024x1024xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64},
                %g0: tensor<1024x1024xf32> {alpa.kind = "state"},
                %g1: tensor<1024x1024xf32> {alpa.kind = "state"},
                %g2: tensor<1024x1024xf32> {alpa.kind = "state"})
    -> (tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>) {
  %d0 = stablehlo.power %g0, %w0 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %d1 = stablehlo.power %g1, %w1 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %d2 = stablehlo.power %g2, %w2 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %m0 = stablehlo.power %d0, %d0 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %m1 = stablehlo.power %d1, %d1 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %m2 = stablehlo.power %d2, %d2 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %s0 = stablehlo.add %m0, %d0 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %s1 = stablehlo.add %m1, %d1 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %s2 = stablehlo.add %m2, %d2 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %n0 = stablehlo.divide %s0, %m0 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %n1 = stablehlo.divide %s1, %m1 {alpa.phase = "update"} : tensor<1024x1024xf32>
  %n2 = stablehlo.divide %s2, %m2 {alpa.phase = "update"} : tensor<1024x1024xf32>
  return %n0, %n1, %n2 : tensor<1024x1024xf32>, tensor<1024x1024xf32>, tensor<1024x1024xf32>
}
