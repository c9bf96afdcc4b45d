// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt --help | FileCheck %s --check-prefix=HELP
// RUN: not alpa-opt --no-such-pass %s 2>&1 | FileCheck %s --check-prefix=PASS
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
