// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" | FileCheck %s --check-prefix=FREE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=237568" | FileCheck %s --check-prefix=FITS
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=237567" | FileCheck %s --check-prefix=TIGHT

// Gathered keys and values take memory, which a ring does not.
// FREE: alpa.gathers_keys
// FITS: alpa.gathers_keys
// TIGHT-NOT: alpa.gathers_keys
// TIGHT: alpa.shardings = [#alpa.sharding<[R, R, S1, R]>
func.func @main(%q: tensor<1x4096x2x8xbf16>, %k: tensor<1x4096x1x8xbf16>, %v: tensor<1x4096x1x8xbf16>) -> (tensor<1x2x4096x8xbf16>) {
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\221\22, \222\22, \224096\22, \224096\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<1x4096x2x8xbf16>, tensor<1x4096x1x8xbf16>, tensor<1x4096x1x8xbf16>) -> (tensor<1x2x4096x8xbf16>, tensor<1x2x4096xf32>, tensor<0xui8>)
  return %0#0 : tensor<1x2x4096x8xbf16>
}
