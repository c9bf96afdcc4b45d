// Six equal blocks between two ops; a block ends with an add, where one value crosses.
//
// RUN: alpa-opt %s -alpa-cluster-layers | FileCheck %s --check-prefixes=CHECK,SIX
// RUN: alpa-opt %s -alpa-cluster-layers=max-layers=4 | FileCheck %s --check-prefixes=CHECK,THREE
// RUN: alpa-opt %s -alpa-cluster-layers=layers=2 | FileCheck %s --check-prefixes=CHECK,TWO
// RUN: alpa-opt %s -alpa-cluster-layers="layers=2 balance=operators" | FileCheck %s --check-prefixes=CHECK,EQUAL
// RUN: alpa-opt %s -alpa-cluster-layers=boundaries=5,12 | FileCheck %s --check-prefixes=CHECK,HAND

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4x8xf32> {alpa.kind = "batch"}, %w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<8x8xf32> {alpa.kind = "state"}, %w2: tensor<8x8xf32> {alpa.kind = "state"}, %w3: tensor<8x8xf32> {alpa.kind = "state"}, %w4: tensor<8x8xf32> {alpa.kind = "state"}, %w5: tensor<8x8xf32> {alpa.kind = "state"}) -> tensor<4x8xf32> {
  // CHECK: negate {{.*}}alpa.layer = 0 :
  %x0 = stablehlo.negate %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  %a0 = stablehlo.dot_general %x0, %w0, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 0 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 0 :
  %b0 = stablehlo.sine %a0 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 0 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 0 :
  %c0 = stablehlo.add %b0, %x0 {alpa.eqn = 3 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  %a1 = stablehlo.dot_general %c0, %w1, contracting_dims = [1] x [0] {alpa.eqn = 4 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 1 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 1 :
  %b1 = stablehlo.sine %a1 {alpa.eqn = 5 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 1 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 0 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 1 :
  %c1 = stablehlo.add %b1, %c0 {alpa.eqn = 6 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 2 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  %a2 = stablehlo.dot_general %c1, %w2, contracting_dims = [1] x [0] {alpa.eqn = 7 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 2 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 1 :
  %b2 = stablehlo.sine %a2 {alpa.eqn = 8 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 2 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 0 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 0 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 1 :
  %c2 = stablehlo.add %b2, %c1 {alpa.eqn = 9 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 3 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  %a3 = stablehlo.dot_general %c2, %w3, contracting_dims = [1] x [0] {alpa.eqn = 10 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 3 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 1 :
  %b3 = stablehlo.sine %a3 {alpa.eqn = 11 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 3 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 1 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 2 :
  %c3 = stablehlo.add %b3, %c2 {alpa.eqn = 12 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 4 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 2 :
  %a4 = stablehlo.dot_general %c3, %w4, contracting_dims = [1] x [0] {alpa.eqn = 13 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 4 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 2 :
  %b4 = stablehlo.sine %a4 {alpa.eqn = 14 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 4 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 2 :
  %c4 = stablehlo.add %b4, %c3 {alpa.eqn = 15 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.dot_general {{.*}}alpa.layer = 5 :
  // THREE: stablehlo.dot_general {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.dot_general {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.dot_general {{.*}}alpa.layer = 2 :
  %a5 = stablehlo.dot_general %c4, %w5, contracting_dims = [1] x [0] {alpa.eqn = 16 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // SIX: stablehlo.sine {{.*}}alpa.layer = 5 :
  // THREE: stablehlo.sine {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.sine {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.sine {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.sine {{.*}}alpa.layer = 2 :
  %b5 = stablehlo.sine %a5 {alpa.eqn = 17 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: stablehlo.add {{.*}}alpa.layer = 5 :
  // THREE: stablehlo.add {{.*}}alpa.layer = 2 :
  // TWO: stablehlo.add {{.*}}alpa.layer = 1 :
  // EQUAL: stablehlo.add {{.*}}alpa.layer = 1 :
  // HAND: stablehlo.add {{.*}}alpa.layer = 2 :
  %c5 = stablehlo.add %b5, %c4 {alpa.eqn = 18 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // SIX: exponential {{.*}}alpa.layer = 5 :
  // THREE: exponential {{.*}}alpa.layer = 2 :
  // HAND: exponential {{.*}}alpa.layer = 2 :
  %y = stablehlo.exponential %c5 {alpa.eqn = 19 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
