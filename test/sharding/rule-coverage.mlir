// RUN: alpa-opt %s -alpa-test-sharding-rule=coverage=true -o /dev/null > %t
// RUN: grep -c . %t | FileCheck %s --check-prefix=COUNT
// RUN: grep -c ^split %t | FileCheck %s --check-prefix=SPLIT
// RUN: grep -v ^split %t | sort | FileCheck %s

// Every op of StableHLO (98) and CHLO (27) has a rule, but for the terminator, for those
// that speak of devices themselves, and for those that import writes in other ops.
// COUNT: {{^}}125{{$}}
// SPLIT: {{^}}100{{$}}

// CHECK:      none stablehlo.all_gather
// CHECK-NEXT: none stablehlo.all_reduce
// CHECK-NEXT: none stablehlo.all_to_all
// CHECK-NEXT: none stablehlo.collective_broadcast
// CHECK-NEXT: none stablehlo.collective_permute
// CHECK-NEXT: none stablehlo.dynamic_broadcast_in_dim
// CHECK-NEXT: none stablehlo.dynamic_gather
// CHECK-NEXT: none stablehlo.dynamic_iota
// CHECK-NEXT: none stablehlo.dynamic_pad
// CHECK-NEXT: none stablehlo.dynamic_reshape
// CHECK-NEXT: none stablehlo.if
// CHECK-NEXT: none stablehlo.map
// CHECK-NEXT: none stablehlo.partition_id
// CHECK-NEXT: none stablehlo.real_dynamic_slice
// CHECK-NEXT: none stablehlo.reduce_scatter
// CHECK-NEXT: none stablehlo.replica_id
// CHECK-NEXT: terminator stablehlo.return
// CHECK-NEXT: whole stablehlo.after_all
// CHECK-NEXT: whole stablehlo.composite
// CHECK-NEXT: whole stablehlo.create_token
// CHECK-NEXT: whole stablehlo.get_dimension_size
// CHECK-NEXT: whole stablehlo.get_tuple_element
// CHECK-NEXT: whole stablehlo.rng
// CHECK-NEXT: whole stablehlo.rng_bit_generator
// CHECK-NEXT: whole stablehlo.tuple
// CHECK-NOT:  {{.}}

// Both dialects are loaded by their use.
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %x : tensor<f32>
  %1 = chlo.square %0 : tensor<f32> -> tensor<f32>
  return %1 : tensor<f32>
}
