// Seconds of a loop are those of its body, as often as it runs: mostly 8192 bytes at 1 TB/s each time, and a number.
// RUN: alpa-opt %s -split-input-file -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | grep -o 'forward_seconds = [0-9.Ee+-]*' | FileCheck %s

// From 0 to 5.
// CHECK: forward_seconds = 4.102500e-08
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
// CHECK: forward_seconds = 4.923000e-08
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
// CHECK: forward_seconds = 3.936
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
// CHECK: forward_seconds = 2.625600e-07
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

// -----

// A loop in a loop, from the outer counter to 8: 8 + 7 + .. + 1 = 36 times.
// CHECK: forward_seconds = 2.954840e-07
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<8> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %step : tensor<i32>
    %2:2 = stablehlo.while(%j = %i, %g = %h) : tensor<i32>, tensor<1024xf32>
    cond {
      %3 = stablehlo.compare LT, %j, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %3 = stablehlo.add %j, %step : tensor<i32>
      %4 = stablehlo.sine %g : tensor<1024xf32>
      stablehlo.return %3, %4 : tensor<i32>, tensor<1024xf32>
    }
    stablehlo.return %1, %2#1 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}

// -----

// The same the other way round, to the smaller of the outer counter's next number and 8.
// CHECK: forward_seconds = 2.956600e-07
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<8> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %step : tensor<i32>
    %end = stablehlo.minimum %1, %limit : tensor<i32>
    %2:2 = stablehlo.while(%j = %start, %g = %h) : tensor<i32>, tensor<1024xf32>
    cond {
      %3 = stablehlo.compare LT, %j, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %3 = stablehlo.add %j, %step : tensor<i32>
      %4 = stablehlo.sine %g : tensor<1024xf32>
      stablehlo.return %3, %4 : tensor<i32>, tensor<1024xf32>
    }
    stablehlo.return %1, %2#1 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}

// -----

// Elementwise values are computed where they are read: here 8 numbers, which are written into what
// the loop carries. No iteration moves 8192 bytes.
// CHECK: forward_seconds = 1.025000e-09
func.func @main(%x: tensor<1024xf32> {alpa.kind = "batch"}) -> tensor<1024xf32> {
  %start = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %limit = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<5> : tensor<i32>
  %step = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1> : tensor<i32>
  %two = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<2.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %start, %h = %x) : tensor<i32>, tensor<1024xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %step : tensor<i32>
    %2 = stablehlo.sine %h : tensor<1024xf32>
    %3 = stablehlo.broadcast_in_dim %two, dims = [] : (tensor<f32>) -> tensor<1024xf32>
    %4 = stablehlo.multiply %2, %3 : tensor<1024xf32>
    %5 = stablehlo.dynamic_slice %4, %i, sizes = [8] : (tensor<1024xf32>, tensor<i32>) -> tensor<8xf32>
    %6 = stablehlo.dynamic_update_slice %h, %5, %i : (tensor<1024xf32>, tensor<8xf32>, tensor<i32>) -> tensor<1024xf32>
    stablehlo.return %1, %6 : tensor<i32>, tensor<1024xf32>
  }
  return %0#1 : tensor<1024xf32>
}
