// RUN: alpa-opt %s | FileCheck %s

// CHECK: module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  // CHECK: func.func public @main(%{{.*}}: tensor<2xf32> {jax.buffer_donor = true}, %{{.*}}: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32> {jax.result_info = "result"})
  func.func public @main(%a: tensor<2xf32> {jax.buffer_donor = true}, %b: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32> {jax.result_info = "result"}) {
    return %a : tensor<2xf32>
  }
}
