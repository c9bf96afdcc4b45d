// Seconds of a loop are those of its body, as often as it runs: 8192 bytes at 1 TB/s each time, and a number.
// RUN: alpa-opt %s -split-input-file -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | grep -o 'forward_seconds = [0-9.Ee+-]*' | FileCheck %s

// From 0 to 5.
// CHECK: forward_seconds = 4.106500e-08
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<5> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %step : tensor<i32>
    %2 = stablehlo.sine %h : tensor<1024xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}

// -----

// From 10 down to 0 by 2.
// CHECK: forward_seconds = 4.927800e-08
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<10> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<2> : tensor<i32>
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare GE, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.subtract %i, %step : tensor<i32>
    %2 = stablehlo.sine %h : tensor<1024xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}

// -----

// The data may end it before 2^31 - 1: so many are not counted.
// CHECK: forward_seconds = 3.946560e-07
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<2147483647> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = stablehlo.slice %h [0:1] : (tensor<1024xf32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.compare GT, %3, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = stablehlo.and %1, %5 : tensor<i1>
    stablehlo.return %4 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %step : tensor<i32>
    %2 = stablehlo.sine %h : tensor<1024xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}

// -----

// What a counter becomes is not always as much more.
// CHECK: forward_seconds = 2.628160e-07
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1000> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<2> : tensor<i32>
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %i, %step : tensor<i32>
    %2 = stablehlo.sine %h : tensor<1024xf32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}
