// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt %s -mlir-print-op-generic | alpa-opt | FileCheck %s

// CHECK: sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @mesh = <["x"=2, "y"=4]>
// CHECK: sdy.mesh @none = <[]>
sdy.mesh @none = <[]>
// CHECK: sdy.mesh @one = <[], device_ids=[3]>
sdy.mesh @one = <[], device_ids=[3]>
// CHECK: sdy.mesh @turned = <["a"=2], device_ids=[1, 0]>
sdy.mesh @turned = <["a"=2], device_ids=[1, 0]>

// CHECK-LABEL: func.func @shardings
// CHECK-SAME: #sdy.sharding<@mesh, [{"x"}, {?}]>
// CHECK-SAME: #sdy.sharding<@mesh, [{"x", ?}p1, {"y":(2)2}], replicated={"y":(1)2}>
// CHECK-SAME: #sdy.sharding<mesh<["x"=2]>, [{}, {"x"}]>
// CHECK-SAME: #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, []>]>
func.func @shardings(
    %a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>},
    %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}p1, {"y":(2)2}], replicated={"y":(1)2}>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{}, {"x"}]>})
    attributes {sdy.two = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, []>]>} {
  return %a : tensor<8x8xf32>
}

// CHECK-LABEL: func.func @ops
// CHECK-SAME: (%[[A:.*]]: tensor<8x8xf32>)
func.func @ops(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: %[[C:.*]] = sdy.sharding_constraint %[[A]] <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %c = sdy.sharding_constraint %a <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  // CHECK: %[[M:.*]]:2 = sdy.manual_computation(%[[C]], %[[A]]) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"y"}], unreduced={"x"}>] out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] manual_axes={"x", "y"} (%[[X:.*]]: tensor<4x8xf32>, %{{.*}}: tensor<8x2xf32>) {
  // CHECK: sdy.return %[[X]], %[[X]] : tensor<4x8xf32>, tensor<4x8xf32>
  // CHECK: } : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %m:2 = sdy.manual_computation(%c, %a)
      in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"y"}], unreduced={"x"}>]
      out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] manual_axes={"x", "y"}
      (%x: tensor<4x8xf32>, %y: tensor<8x2xf32>) {
    sdy.return %x, %x : tensor<4x8xf32>, tensor<4x8xf32>
  } : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  // CHECK: sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {
  sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {
    sdy.return
  } : () -> ()
  return %m#0 : tensor<8x8xf32>
}
