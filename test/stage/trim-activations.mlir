// Gradients compute again what is cheaper than to keep; what products and others read stays.
// RUN: alpa-opt %s -alpa-trim-activations -split-input-file -verify-diagnostics | FileCheck %s

// Of the product %h and four values made of it, %h is kept, and %t, which the weight's gradient
// multiplies; the constant costs nothing. Ops run again where they are read first.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H:.*]] = stablehlo.dot_general %{{.*}} {alpa.layer = 0 : i64, alpa.phase = "forward"}
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[H]] {alpa.layer = 0 : i64, alpa.phase = "forward"}
// CHECK-NEXT: stablehlo.dot_general %[[T]], {{.*}} {alpa.layer = 1 : i64, alpa.phase = "forward"}
// CHECK-NEXT: %[[A:.*]] = stablehlo.multiply %{{.*}}, %[[H]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: %[[S:.*]] = stablehlo.multiply %[[T]], %[[T]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: %[[C:.*]] = stablehlo.constant {alpa.layer = 0 : i64, alpa.phase = "backward"} dense<1.0
// CHECK-NEXT: %[[D:.*]] = stablehlo.subtract %[[C]], %[[S]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: %[[B:.*]] = stablehlo.multiply %[[A]], %[[D]]
// CHECK-NEXT: %[[E:.*]] = stablehlo.multiply %[[B]], %[[S]]
// CHECK-NEXT: stablehlo.dot_general %[[T]], %[[E]]
func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}, %dy: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x8xf32>, tensor<8x8xf32>) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %t = stablehlo.tanh %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %s = stablehlo.multiply %t, %t {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %one = stablehlo.constant {alpa.layer = 0 : i64, alpa.phase = "forward"} dense<1.0> : tensor<4x8xf32>
  %d = stablehlo.subtract %one, %s {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %y = stablehlo.dot_general %t, %w, contracting_dims = [1] x [0] {alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %a = stablehlo.multiply %dy, %h {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %b = stablehlo.multiply %a, %d {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %e = stablehlo.multiply %b, %s {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %g = stablehlo.dot_general %t, %e, contracting_dims = [0] x [0] {alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %y, %g : tensor<4x8xf32>, tensor<8x8xf32>
}

// -----

// One value that was not kept before (%h) is instead of three. What layer 1 reads of layer 0 is layer 0's
// to keep; sums are not computed again.

// CHECK-LABEL: func.func @main(
// CHECK: %[[H:.*]] = stablehlo.dot_general
// CHECK-NEXT: stablehlo.add %arg0, %[[H]] {alpa.layer = 0 : i64, alpa.phase = "forward"}
// CHECK: %[[R:.*]] = stablehlo.reduce(%[[H]] {{.*}}"forward"
// CHECK-NEXT: %[[O:.*]] = stablehlo.abs %[[H]] {alpa.layer = 0 : i64, alpa.phase = "forward"}
// CHECK-NEXT: stablehlo.multiply %[[H]], %[[H]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: stablehlo.negate %[[H]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: stablehlo.add {{.*}} {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: stablehlo.cosine %[[H]] {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: stablehlo.add
// CHECK-NEXT: %[[N:.*]] = stablehlo.negate %arg0 {alpa.layer = 0 : i64, alpa.phase = "backward"}
// CHECK-NEXT: stablehlo.add {{.*}}, %[[N]]
// CHECK-NEXT: stablehlo.multiply {{.*}}, %[[O]] {alpa.layer = 1 : i64, alpa.phase = "backward"}
func.func @main(%s: tensor<4x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<4x8xf32> {alpa.kind = "batch"}, %w: tensor<8x8xf32> {alpa.kind = "state"}) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xf32>) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %a = stablehlo.multiply %h, %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %b = stablehlo.negate %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %c = stablehlo.cosine %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %n = stablehlo.negate %s {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %next = stablehlo.add %s, %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %zero = stablehlo.constant {alpa.layer = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [1] {alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %o = stablehlo.abs %h {alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %0 = stablehlo.add %a, %b {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %1 = stablehlo.add %0, %c {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %2 = stablehlo.add %1, %n {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %3 = stablehlo.multiply %2, %o {alpa.layer = 1 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %4 = stablehlo.sine %r {alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4xf32>
  return %next, %3, %4 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4xf32>
}

// -----

// expected-error @+1 {{the module has no function @main}}
module {
}
