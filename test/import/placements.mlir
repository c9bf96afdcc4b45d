// RUN: alpa-opt %s -alpa-import | FileCheck %s
// RUN: alpa-opt %s -alpa-import=keep-placements=true | FileCheck %s --check-prefix=KEPT

// Placements change no value.
// CHECK-LABEL: @main
// CHECK-NOT: annotate_device_placement
// CHECK: %[[X:.*]] = stablehlo.negate %arg0
// CHECK: stablehlo.add %[[X]], %[[X]]
// KEPT-LABEL: @main
// KEPT-NOT: annotate_device_placement
// KEPT: %[[X:.*]] = stablehlo.negate %arg0
// KEPT: %[[H:.*]] = stablehlo.optimization_barrier {{.*}}alpa.offloaded = array<i64: 0>{{.*}} %[[X]]
// KEPT: stablehlo.add %[[H]], %[[X]]
func.func public @main(%x: tensor<8xf32>) -> (tensor<8xf32> {mhlo.memory_kind = "device"}) {
  %0 = stablehlo.negate %x : tensor<8xf32>
  %1 = stablehlo.custom_call @annotate_device_placement(%0) {backend_config = "", has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = stablehlo.custom_call @annotate_device_placement(%1) {backend_config = "", has_side_effect = true, mhlo.frontend_attributes = {_xla_buffer_placement = "device"}} : (tensor<8xf32>) -> tensor<8xf32>
  %3 = stablehlo.add %2, %0 : tensor<8xf32>
  return %3 : tensor<8xf32>
}
