// Shardings become annotations of Shardy.
// RUN: alpa-opt %s --alpa-export-shardy --allow-unregistered-dialect --split-input-file | FileCheck %s

// An axis of size 1 is dropped; a spec that uses it splits nothing.
// CHECK-LABEL: module @stage_0
// CHECK: sdy.mesh{{.*}}<["y"=2, "z"=2]>
// CHECK: func.func @forward(
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>, alpa.value = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}
// CHECK-SAME: -> (tensor<4x8xf32> {{{.*}}sdy.sharding = #sdy.sharding<@mesh, [{"y", "z"}, {}]>}
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2, 2], devices = [0, 1, 2, 3]>} {
  func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>, alpa.value = 0 : i64})
      -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S12, R]>, alpa.value = 1 : i64}) {
    // CHECK-NEXT: %[[D:.*]] = "test.dot"(%[[X]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK-NEXT: %[[C:.*]] = {{"?}}sdy.sharding_constraint{{"?[ (]}}%[[D]]{{.*}}[{"y", "z"}, {}]
    %0 = "test.dot"(%x) {alpa.shardings = [#alpa.sharding<[S12, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    // Split like its operand: nothing to say.
    // CHECK-NEXT: %[[T:.*]] = {{"?}}stablehlo.tanh{{"?[ (]}}%[[C]]
    %1 = "stablehlo.tanh"(%0) {alpa.shardings = [#alpa.sharding<[S12, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK-NEXT: %[[N:.*]] = {{"?}}stablehlo.negate{{"?[ (]}}%[[T]]
    // CHECK-NEXT: %[[CN:.*]] = {{"?}}sdy.sharding_constraint{{"?[ (]}}%[[N]]{{.*}}[{}, {"y"}]
    %2 = "stablehlo.negate"(%1) {alpa.shardings = [#alpa.sharding<[R, S01]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    // A scalar has no dimension to split.
    // CHECK-NEXT: "test.sum"
    %3 = "test.sum"(%2) {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<4x8xf32>) -> tensor<f32>
    // CHECK-NEXT: return %[[CN]]
    return %2 : tensor<4x8xf32>
  }
}
}

// -----

// One device needs no annotation.
// CHECK-LABEL: module @stage_0
// CHECK-NOT: sdy
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 1], devices = [7]>} {
  func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64})
      -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}) {
    %0 = "test.dot"(%x) {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
}

// -----

// A reshard is a constraint of its own, behind the one that says how the value is
// held; with an axis of size 1 dropped, a value split like its operand says nothing.
// CHECK-LABEL: module @stage_0
// CHECK: func.func @forward(%[[X:.*]]: tensor<4x8xf32>
// CHECK-NEXT: %[[R:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {"y"}]>
// CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[R]]
// CHECK-NEXT: %[[B:.*]] = sdy.sharding_constraint %[[T]] <@mesh, [{}, {}]>
// CHECK-NEXT: return %[[B]]
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
  func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>, alpa.value = 0 : i64})
      -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}) {
    %0 = alpa.reshard %x {from = #alpa.sharding<[S1, R]>, to = #alpa.sharding<[R, S1]>} : tensor<4x8xf32>
    %1 = stablehlo.tanh %0 {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : tensor<4x8xf32>
    %2 = alpa.reshard %1 {from = #alpa.sharding<[R, S1]>, to = #alpa.sharding<[R, R]>} : tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}
}

// -----

// Every step of a path is stated, so that each is one collective.
// CHECK-LABEL: module @stage_0
// CHECK: func.func @forward(%[[X:.*]]: tensor<4x8xf32>
// CHECK-NEXT: %[[A:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{"y"}, {"x"}]>
// CHECK-NEXT: %[[B:.*]] = sdy.sharding_constraint %[[A]] <@mesh, [{"y"}, {}]>
// CHECK-NEXT: return %[[B]]
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S01]>, alpa.value = 0 : i64})
      -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>, alpa.value = 1 : i64}) {
    %0 = alpa.reshard %x {from = #alpa.sharding<[R, S01]>, through = [#alpa.sharding<[S1, S0]>], to = #alpa.sharding<[S1, R]>} : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
}

// -----

// Split groups: every device convolves its own, and none has to be told how.
// CHECK-LABEL: func.func @groups(
// CHECK: %[[M:.*]] = sdy.manual_computation(%{{.*}}, %{{.*}}) in_shardings=[<@mesh, [{}, {}, {"x"}]>, <@mesh, [{}, {}, {"x"}]>] out_shardings=[<@mesh, [{}, {}, {"x"}]>] manual_axes={"x", "y"} (%[[A:.*]]: tensor<4x8x3xf32>, %[[B:.*]]: tensor<5x3x8xf32>) {
// CHECK-NEXT: %[[C:.*]] = stablehlo.convolution(%[[A]], %[[B]]){{.*}}feature_group_count = 1 : i64{{.*}} -> tensor<4x4x8xf32>
// CHECK-NEXT: sdy.return %[[C]] : tensor<4x4x8xf32>
// CHECK: return %[[M]]
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @groups(%x: tensor<4x8x6xf32> {alpa.sharding = #alpa.sharding<[R, R, S0]>, alpa.value = 0 : i64},
                    %k: tensor<5x3x16xf32> {alpa.sharding = #alpa.sharding<[R, R, S0]>, alpa.value = 1 : i64})
      -> (tensor<4x4x16xf32> {alpa.sharding = #alpa.sharding<[R, R, S0]>, alpa.value = 2 : i64}) {
    %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
        {alpa.shardings = [#alpa.sharding<[R, R, S0]>], batch_group_count = 1 : i64, feature_group_count = 2 : i64}
        : (tensor<4x8x6xf32>, tensor<5x3x16xf32>) -> tensor<4x4x16xf32>
    return %0 : tensor<4x4x16xf32>
  }
}
}

// -----

// Any convolution is: here devices have terms of a sum over the features of the input.
// CHECK-LABEL: func.func @features(
// CHECK: %[[M:.*]] = sdy.manual_computation(%{{.*}}) in_shardings=[<@mesh, [{}, {}, {"x"}]>, <@mesh, [{}, {"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}, {}, {}]>]
// CHECK: stablehlo.convolution{{.*}} -> tensor<4x4x16xf32>
// CHECK: stablehlo.reduce(%[[M]] {{.*}} across dimensions = [0] : (tensor<2x4x4x16xf32>
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @features(%x: tensor<4x8x6xf32> {alpa.sharding = #alpa.sharding<[R, R, S0]>, alpa.value = 0 : i64},
                      %k: tensor<5x6x16xf32> {alpa.sharding = #alpa.sharding<[R, S0, R]>, alpa.value = 1 : i64})
      -> (tensor<4x4x16xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}) {
    %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
        {alpa.shardings = [#alpa.sharding<[R, R, R]>], batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<4x8x6xf32>, tensor<5x6x16xf32>) -> tensor<4x4x16xf32>
    return %0 : tensor<4x4x16xf32>
  }
}
}

// -----

// An initial value is added once, a dimension of a sort is counted from the front, and indices
// have 32 bits or more.
// CHECK-LABEL: func.func @written_otherwise(
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK: stablehlo.reduce(%arg0 init: %[[ZERO]])
// CHECK: %[[INITIAL:.*]] = stablehlo.broadcast_in_dim %arg1
// CHECK: stablehlo.add %{{.*}}, %[[INITIAL]]
// CHECK: "stablehlo.sort"{{.*}}dimension = 0
// CHECK: %[[INDICES:.*]] = stablehlo.convert %arg2 : (tensor<3x1xi8>) -> tensor<3x1xi32>
// CHECK: "stablehlo.gather"(%{{.*}}, %[[INDICES]])
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @written_otherwise(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = 0 : i64},
                               %i: tensor<f32> {alpa.sharding = #alpa.sharding<[]>, alpa.value = 1 : i64},
                               %n: tensor<3x1xi8> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64})
      -> (tensor<8xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 3 : i64},
          tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 4 : i64},
          tensor<3x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 5 : i64}) {
    %0 = stablehlo.reduce(%x init: %i) applies stablehlo.add across dimensions = [0]
        {alpa.shardings = [#alpa.sharding<[R]>]} : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    %1 = "stablehlo.sort"(%x) <{dimension = -2 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }) {alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = "stablehlo.gather"(%x, %n) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}>
        {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>, tensor<3x1xi8>) -> tensor<3x8xf32>
    return %0, %1, %2 : tensor<8xf32>, tensor<4x8xf32>, tensor<3x8xf32>
  }
}
}

// -----

// A call of fused attention runs on each device's examples and heads, and says so in its
// configuration.
// CHECK-LABEL: func.func @attention(
// CHECK: sdy.manual_computation(%{{.*}}) in_shardings=[<@mesh, [{"x"}, {}, {"y"}, {}]>, <@mesh, [{"x"}, {}, {"y"}, {}]>, <@mesh, [{"x"}, {}, {"y"}, {}]>] out_shardings=[<@mesh, [{"x"}, {"y"}, {}, {}]>, <@mesh, [{"x"}, {"y"}, {}]>, <@mesh, [{}]>] manual_axes={"x", "y"}
// CHECK: stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: dimensions\22:[\222\22,\224\22,\2216\22,\2216\22]
// CHECK-SAME: (tensor<2x16x4x2xbf16>, tensor<2x16x2x2xbf16>, tensor<2x16x2x2xbf16>) -> (tensor<2x4x16x2xbf16>, tensor<2x4x16xf32>, tensor<0xui8>)
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @attention(%q: tensor<4x16x8x2xbf16> {alpa.sharding = #alpa.sharding<[S0, R, S1, R]>}, %k: tensor<4x16x4x2xbf16> {alpa.sharding = #alpa.sharding<[S0, R, S1, R]>}, %v: tensor<4x16x4x2xbf16> {alpa.sharding = #alpa.sharding<[S0, R, S1, R]>}) -> (tensor<4x8x16x2xbf16> {alpa.sharding = #alpa.sharding<[S0, S1, R, R]>}) {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {alpa.shardings = [#alpa.sharding<[S0, S1, R, R]>, #alpa.sharding<[S0, S1, R]>, #alpa.sharding<[R]>], api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<4x8x16x2xbf16>
  }
}
}

// -----

// Each device multiplies its rows with the weights of its groups: groups are counted from the
// first of these, and terms of the sum get a dimension.
// CHECK-LABEL: module @stage_0
// CHECK:       func.func @forward(%[[X:.*]]: tensor<8x6xf32> {{.*}}, %[[W:.*]]: tensor<4x6x6xf32> {{.*}}, %[[G:.*]]: tensor<8xi32>
// CHECK:       %[[I:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK:       %[[TERMS:.*]] = {{"?}}sdy.manual_computation{{"?}}(%[[X]], %[[W]], %[[G]], %[[I]])
// CHECK-SAME:  in_shardings={{.*}}[{"x"}, {}]>, <@mesh, [{"y"}, {}, {}]>, <@mesh, [{"x"}]>, <@mesh, [{"y"}]>]
// CHECK-SAME:  out_shardings={{.*}}[{"y"}, {"x"}, {}]>]
// CHECK:       %[[LOCAL:.*]] = stablehlo.subtract %{{.*}} : tensor<4xi32>
// CHECK:       alpa.grouped_dot %{{.*}} of %[[LOCAL]] {contracting = 1 : i64} : (tensor<4x6xf32>, tensor<2x6x6xf32>, tensor<4xi32>)
// CHECK:       %[[Y:.*]] = stablehlo.reduce(%[[TERMS]] init:
// CHECK:       sdy.sharding_constraint %[[Y]] <@mesh, [{"x"}, {}]>
// CHECK:       out_shardings=[<@mesh, [{"x"}, {"y"}, {}, {}]>]
// CHECK:       alpa.grouped_sum {{.*}} -> tensor<2x6x6xf32>
// CHECK:       sdy.sharding_constraint %{{.*}} <@mesh, [{"y"}, {}, {}]>
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @forward(%x: tensor<8x6xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = 0 : i64},
                     %w: tensor<4x6x6xf32> {alpa.sharding = #alpa.sharding<[S1, R, R]>, alpa.value = 1 : i64},
                     %g: tensor<8xi32> {alpa.sharding = #alpa.sharding<[S0]>, alpa.value = 2 : i64})
      -> (tensor<8x6xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = 3 : i64},
          tensor<4x6x6xf32> {alpa.sharding = #alpa.sharding<[S1, R, R]>, alpa.value = 4 : i64}) {
    %y = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x6xf32>, tensor<4x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
    %s = alpa.grouped_sum %x, %y of %g {alpa.shardings = [#alpa.sharding<[S1, R, R]>]} : (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8xi32>) -> tensor<4x6x6xf32>
    return %y, %s : tensor<8x6xf32>, tensor<4x6x6xf32>
  }
}
}

// -----

// A call with side effects is made by each device: the partitioner takes no other.
// CHECK-LABEL: module @stage_0
// CHECK: func.func @forward(%[[X:.*]]: tensor<4x8xf32>
// CHECK: sdy.manual_computation(%[[X]])
// CHECK: stablehlo.custom_call @log
// CHECK: stablehlo.custom_call @pure
// CHECK-NOT: sdy.manual_computation
module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
  func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64})
      -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}) {
    %0 = stablehlo.custom_call @log(%x) {has_side_effect = true, alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = stablehlo.custom_call @pure(%0) {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}
}
