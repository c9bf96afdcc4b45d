// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt --help | FileCheck %s --check-prefix=HELP
// RUN: not alpa-opt --no-such-pass %s 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: %python -c "print('module {\n' * 100000)" | not alpa-opt 2>&1 | FileCheck %s --check-prefix=DEEP
// RUN: alpa-opt --show-dialects | FileCheck %s --check-prefix=DIALECTS
// RUN: not alpa-opt absent.mlir 2>&1 | FileCheck %s --check-prefix=ABSENT
// RUN: echo "func.func @f(" | not alpa-opt 2>&1 | FileCheck %s --check-prefix=MALFORMED

// CHECK-LABEL: func.func @main
// CHECK: return %{{.*}} : tensor<2xf32>
func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
  return %arg0 : tensor<2xf32>
}

// HELP: OVERVIEW: alpa-opt
// HELP: --canonicalize
// PASS: Unknown command line argument '--no-such-pass'
// MALFORMED: error: expected
// DEEP: <stdin>:1001:8: error: brackets are nested more than 1000 deep
// DIALECTS: stablehlo
// ABSENT: cannot open input file 'absent.mlir': No such file or directory
