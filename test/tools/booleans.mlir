// RUN: alpa-opt %s | FileCheck %s
// RUN: sed 's/tensor<2x5xi1>/tensor<11xi1>/' %s | not alpa-opt 2>&1 | FileCheck %s --check-prefix=OTHER
// Booleans in hexadecimal: JAX 0.12 writes one in a byte, earlier versions eight.

// CHECK-LABEL: func.func @main
func.func @main() -> (tensor<2x5xi1>, tensor<10xi1>, tensor<10xi8>) {
  // CHECK: dense<{{\[\[}}true, false, false, false, true], [false, true, true, true, true]]> : tensor<2x5xi1>
  %0 = stablehlo.constant dense<"0x01000000010001010101"> : tensor<2x5xi1>
  // CHECK: dense<[true, false, false, false, true, false, true, true, true, true]> : tensor<10xi1>
  %1 = stablehlo.constant dense<"0xD103"> : tensor<10xi1>
  // CHECK: dense<[1, 0, 0, 0, 1, 0, 1, 1, 1, 1]> : tensor<10xi8>
  %2 = stablehlo.constant dense<"0x01000000010001010101"> : tensor<10xi8>
  return %0, %1, %2 : tensor<2x5xi1>, tensor<10xi1>, tensor<10xi8>
}

// OTHER: error: elements hex data size is invalid for provided type: 'tensor<11xi1>'
