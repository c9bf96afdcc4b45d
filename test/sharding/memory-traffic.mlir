// What kernels read and write, as XLA fuses a step, on one device. 64 x 64 numbers of float32 are
// 16384 bytes, a row of them 256.
// RUN: echo '{device_types: {small: {memory_bytes: 1GiB, memory_bandwidth: 1e10, peak_flops: {float32: 2e10}}}, hosts: {devices: 1, device_type: small}, links: {intra_host: {bandwidth: 4e9, latency: 2e-6}, inter_host: {bandwidth: 1e8, latency: 5e-5}}}' > %t.yaml
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%t.yaml" | grep -o 'kernels = [0-9]*\|memory_traffic_bytes = [0-9.e+]*\|where = "[^"]*"' | paste - - - | FileCheck %s

// Two moments of one tensor are made by one kernel, which reads it once.
// CHECK-DAG: kernels = 1{{.*}} = 1.664000e+04 where = "mean"
// CHECK-DAG: kernels = 0{{.*}} = 2.560000e+02 where = "square"
// What depends on another reduction has a kernel of its own.
// CHECK-DAG: kernels = 1{{.*}} = 1.689600e+04 where = "variance"
// The kernel that updates a weight and its momentum reads the gradient once, and what it has made
// not again.
// CHECK-DAG: kernels = 0{{.*}} = 4.915200e+04 where = "momentum"
// CHECK-DAG: kernels = 0{{.*}} = 3.276800e+04 where = "weight"
// A scalar of several sums is made once, so that the update reads one number of it.
// CHECK-DAG: = 3.277200e+04 where = "scaled"
// A call reads its operand and writes its result; how much of the memory that it works in, nobody
// knows.
// CHECK-DAG: = 3.276800e+04 where = "call"
func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %m: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %v: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64}, %x: tensor<64x64xf32> {alpa.kind = "batch"}, %n0: tensor<f32> {alpa.kind = "state"}, %n1: tensor<f32> {alpa.kind = "state"}, %n2: tensor<f32> {alpa.kind = "state"}, %n3: tensor<f32> {alpa.kind = "state"}, %n4: tensor<f32> {alpa.kind = "state"}) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<64x64xf32>) {
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %mean = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32> loc("mean")
  %xx = stablehlo.multiply %x, %x {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %square = stablehlo.reduce(%xx init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32> loc("square")
  %means = stablehlo.broadcast_in_dim %mean, dims = [1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<64xf32>) -> tensor<64x64xf32>
  %off = stablehlo.subtract %x, %means {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %offs = stablehlo.multiply %off, %off {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %variance = stablehlo.reduce(%offs init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32> loc("variance")
  %both = stablehlo.add %square, %variance {alpa.eqn = 3 : i64, alpa.phase = "forward"} : tensor<64xf32>
  %g = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 4 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %m1 = stablehlo.add %m, %g {alpa.phase = "update"} : tensor<64x64xf32> loc("momentum")
  %step = stablehlo.multiply %m1, %g {alpa.phase = "update"} : tensor<64x64xf32>
  %w1 = stablehlo.subtract %w, %step {alpa.phase = "update"} : tensor<64x64xf32> loc("weight")
  %p1 = stablehlo.add %n0, %n1 {alpa.phase = "update"} : tensor<f32>
  %p2 = stablehlo.add %p1, %n2 {alpa.phase = "update"} : tensor<f32>
  %p3 = stablehlo.add %p2, %n3 {alpa.phase = "update"} : tensor<f32>
  %p4 = stablehlo.add %p3, %n4 {alpa.phase = "update"} : tensor<f32>
  %ns = stablehlo.broadcast_in_dim %p4, dims = [] {alpa.phase = "update"} : (tensor<f32>) -> tensor<64x64xf32>
  %v1 = stablehlo.multiply %v, %ns {alpa.phase = "update"} : tensor<64x64xf32> loc("scaled")
  %call:2 = stablehlo.custom_call @kernel(%x) {alpa.eqn = 5 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<33554432xui8>) loc("call")
  return %w1, %m1, %v1, %both, %call#0 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<64x64xf32>
}
