// RUN: not alpa-opt %s -alpa-import 2>&1 | FileCheck %s

// One forward and one backward computation: what lies between them is named.

// CHECK: error: {{.*}}'stablehlo.cosine' op is forward but needs a value of the backward computation; a step may have one forward and one backward computation
// CHECK: note: {{.*}}the value is computed here
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/sin")
  %1 = stablehlo.cosine %0 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_1)/cos")
  return %1 : tensor<4xf32>
}
