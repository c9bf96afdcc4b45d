// RUN: alpa-opt %s -alpa-test-apply-strategies=mesh-shape=2,1 | FileCheck %s
// RUN: not alpa-opt %S/Inputs/no-rule.mlir -alpa-test-apply-strategies=mesh-shape=2 2>&1 | FileCheck %s --check-prefix=RULE

// Whole, by rows, by columns; by the contracted dimension with the sum on both devices,
// or scattered over the rows. The axis of one device is not used; the
// constant is made as the dot wants it.
// CHECK-NOT:   func.func @main
// CHECK:       module @strategy_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 1], devices = [0, 1]>}
// CHECK:         @main(%{{.*}}: tensor<4x6xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) -> (tensor<4x2xf32> {alpa.sharding = #alpa.sharding<[R, R]>})
// CHECK:       module @strategy_1
// CHECK:         @main(%{{.*}}: tensor<4x6xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<4x2xf32> {alpa.sharding = #alpa.sharding<[S0, R]>})
// CHECK:           constant {alpa.shardings = [#alpa.sharding<[R, R]>]}
// CHECK:       module @strategy_2
// CHECK:         @main(%{{.*}}: tensor<4x6xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) -> (tensor<4x2xf32> {alpa.sharding = #alpa.sharding<[R, S0]>})
// CHECK:           constant {alpa.shardings = [#alpa.sharding<[R, S0]>]}
// CHECK:       module @strategy_3
// CHECK:         @main(%{{.*}}: tensor<4x6xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) -> (tensor<4x2xf32> {alpa.sharding = #alpa.sharding<[R, R]>})
// CHECK:           dot_general {{.*}} {alpa.shardings = [#alpa.sharding<[R, R]>], alpa.use_shardings = [#alpa.sharding<[R, S0]>, #alpa.sharding<[S0, R]>]}
// CHECK:       module @strategy_4
// CHECK:         @main(%{{.*}}: tensor<4x6xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) -> (tensor<4x2xf32> {alpa.sharding = #alpa.sharding<[S0, R]>})
func.func @main(%x: tensor<4x6xf32>) -> tensor<4x2xf32> {
  %y = stablehlo.constant dense<1.0> : tensor<6x2xf32>
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// RULE: error: {{.*}}op has no sharding rule
