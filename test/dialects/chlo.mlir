// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt %s -mlir-print-op-generic | alpa-opt | FileCheck %s

// CHECK-LABEL: func.func @unary
func.func @unary(%a: tensor<4xf32>, %c: tensor<4xcomplex<f32>>) {
  // CHECK: chlo.acos %{{.*}} : tensor<4xf32> -> tensor<4xf32>
  %0 = chlo.acos %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.acosh
  %1 = chlo.acosh %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.asin %
  %2 = chlo.asin %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.asinh
  %3 = chlo.asinh %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.atan %
  %4 = chlo.atan %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.atanh
  %5 = chlo.atanh %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.bessel_i1e
  %6 = chlo.bessel_i1e %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.conj %{{.*}} : tensor<4xcomplex<f32>> -> tensor<4xcomplex<f32>>
  %7 = chlo.conj %c : tensor<4xcomplex<f32>> -> tensor<4xcomplex<f32>>
  // CHECK: chlo.cosh
  %8 = chlo.cosh %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.digamma
  %9 = chlo.digamma %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.erf %
  %10 = chlo.erf %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.erf_inv
  %11 = chlo.erf_inv %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.erfc
  %12 = chlo.erfc %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.lgamma
  %13 = chlo.lgamma %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.sinh
  %14 = chlo.sinh %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.square
  %15 = chlo.square %a : tensor<4xf32> -> tensor<4xf32>
  // CHECK: chlo.tan
  %16 = chlo.tan %a : tensor<4xf32> -> tensor<4xf32>
  return
}

// CHECK-LABEL: func.func @others
func.func @others(%a: tensor<4x8xf32>) {
  // CHECK: chlo.next_after %{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
  %0 = chlo.next_after %a, %a : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
  // CHECK: chlo.polygamma
  %1 = chlo.polygamma %a, %a : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
  // CHECK: chlo.zeta
  %2 = chlo.zeta %a, %a : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
  // CHECK: %{{.*}}, %{{.*}} = chlo.top_k(%{{.*}}, k = 3) : tensor<4x8xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
  %3:2 = chlo.top_k(%a, k = 3) : tensor<4x8xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
  // CHECK: chlo.top_k(%{{.*}}, k = 3, is_stable = false) : tensor<4x8xf32>
  %unstable:2 = chlo.top_k(%a, k = 3, is_stable = false) : tensor<4x8xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
  return
}
