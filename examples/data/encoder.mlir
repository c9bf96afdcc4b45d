// A text encoder with a classifier, written by hand as frameworks other than JAX export models:
// weights are arguments in the layout [out, in], blocks are functions, nothing has a name or a
// location. It is the program of 8 rows of 32 characters: ids in, a probability of each of 10
// classes for every row out.
//
// Each block is attention with 4 heads of 16 features and an MLP with SiLU, both behind RMS norms.

module @encoder {
  func.func private @rms_norm(%x: tensor<8x32x64xf32>, %scale: tensor<64xf32>) -> tensor<8x32x64xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %count = stablehlo.constant dense<64.0> : tensor<8x32xf32>
    %tiny = stablehlo.constant dense<1.0e-5> : tensor<8x32xf32>
    %squares = stablehlo.multiply %x, %x : tensor<8x32x64xf32>
    %sum = stablehlo.reduce(%squares init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<8x32x64xf32>, tensor<f32>) -> tensor<8x32xf32>
    %mean = stablehlo.divide %sum, %count : tensor<8x32xf32>
    %safe = stablehlo.add %mean, %tiny : tensor<8x32xf32>
    %root = stablehlo.rsqrt %safe : tensor<8x32xf32>
    %roots = stablehlo.broadcast_in_dim %root, dims = [0, 1] : (tensor<8x32xf32>) -> tensor<8x32x64xf32>
    %scales = stablehlo.broadcast_in_dim %scale, dims = [2] : (tensor<64xf32>) -> tensor<8x32x64xf32>
    %unit = stablehlo.multiply %x, %roots : tensor<8x32x64xf32>
    %result = stablehlo.multiply %unit, %scales : tensor<8x32x64xf32>
    return %result : tensor<8x32x64xf32>
  }

  func.func private @softmax(%x: tensor<8x4x32x32xf32>) -> tensor<8x4x32x32xf32> {
    %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %most = stablehlo.reduce(%x init: %least) applies stablehlo.maximum across dimensions = [3] : (tensor<8x4x32x32xf32>, tensor<f32>) -> tensor<8x4x32xf32>
    %tops = stablehlo.broadcast_in_dim %most, dims = [0, 1, 2] : (tensor<8x4x32xf32>) -> tensor<8x4x32x32xf32>
    %below = stablehlo.subtract %x, %tops : tensor<8x4x32x32xf32>
    %powers = stablehlo.exponential %below : tensor<8x4x32x32xf32>
    %sum = stablehlo.reduce(%powers init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<8x4x32x32xf32>, tensor<f32>) -> tensor<8x4x32xf32>
    %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1, 2] : (tensor<8x4x32xf32>) -> tensor<8x4x32x32xf32>
    %result = stablehlo.divide %powers, %sums : tensor<8x4x32x32xf32>
    return %result : tensor<8x4x32x32xf32>
  }

  func.func private @block(%x: tensor<8x32x64xf32>, %norm_1: tensor<64xf32>, %qkv: tensor<192x64xf32>, %out: tensor<64x64xf32>,
                           %norm_2: tensor<64xf32>, %up: tensor<256x64xf32>, %down: tensor<64x256xf32>) -> tensor<8x32x64xf32> {
    // Queries, keys and values of all heads in one product.
    %h = call @rms_norm(%x, %norm_1) : (tensor<8x32x64xf32>, tensor<64xf32>) -> tensor<8x32x64xf32>
    %all = stablehlo.dot_general %h, %qkv, contracting_dims = [2] x [1] : (tensor<8x32x64xf32>, tensor<192x64xf32>) -> tensor<8x32x192xf32>
    %split = stablehlo.reshape %all : (tensor<8x32x192xf32>) -> tensor<8x32x3x4x16xf32>
    %turned = stablehlo.transpose %split, dims = [2, 0, 3, 1, 4] : (tensor<8x32x3x4x16xf32>) -> tensor<3x8x4x32x16xf32>
    %q_1 = stablehlo.slice %turned [0:1, 0:8, 0:4, 0:32, 0:16] : (tensor<3x8x4x32x16xf32>) -> tensor<1x8x4x32x16xf32>
    %k_1 = stablehlo.slice %turned [1:2, 0:8, 0:4, 0:32, 0:16] : (tensor<3x8x4x32x16xf32>) -> tensor<1x8x4x32x16xf32>
    %v_1 = stablehlo.slice %turned [2:3, 0:8, 0:4, 0:32, 0:16] : (tensor<3x8x4x32x16xf32>) -> tensor<1x8x4x32x16xf32>
    %q = stablehlo.reshape %q_1 : (tensor<1x8x4x32x16xf32>) -> tensor<8x4x32x16xf32>
    %k = stablehlo.reshape %k_1 : (tensor<1x8x4x32x16xf32>) -> tensor<8x4x32x16xf32>
    %v = stablehlo.reshape %v_1 : (tensor<1x8x4x32x16xf32>) -> tensor<8x4x32x16xf32>

    // Every character looks at every other one.
    %raw = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<8x4x32x16xf32>, tensor<8x4x32x16xf32>) -> tensor<8x4x32x32xf32>
    %quarter = stablehlo.constant dense<0.25> : tensor<8x4x32x32xf32>
    %scores = stablehlo.multiply %raw, %quarter : tensor<8x4x32x32xf32>
    %weights = call @softmax(%scores) : (tensor<8x4x32x32xf32>) -> tensor<8x4x32x32xf32>
    %mixed = stablehlo.dot_general %weights, %v, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<8x4x32x32xf32>, tensor<8x4x32x16xf32>) -> tensor<8x4x32x16xf32>
    %back = stablehlo.transpose %mixed, dims = [0, 2, 1, 3] : (tensor<8x4x32x16xf32>) -> tensor<8x32x4x16xf32>
    %joined = stablehlo.reshape %back : (tensor<8x32x4x16xf32>) -> tensor<8x32x64xf32>
    %seen = stablehlo.dot_general %joined, %out, contracting_dims = [2] x [1] : (tensor<8x32x64xf32>, tensor<64x64xf32>) -> tensor<8x32x64xf32>
    %y = stablehlo.add %x, %seen : tensor<8x32x64xf32>

    %g = call @rms_norm(%y, %norm_2) : (tensor<8x32x64xf32>, tensor<64xf32>) -> tensor<8x32x64xf32>
    %wide = stablehlo.dot_general %g, %up, contracting_dims = [2] x [1] : (tensor<8x32x64xf32>, tensor<256x64xf32>) -> tensor<8x32x256xf32>
    %gate = stablehlo.logistic %wide : tensor<8x32x256xf32>
    %inner = stablehlo.multiply %wide, %gate : tensor<8x32x256xf32>
    %narrow = stablehlo.dot_general %inner, %down, contracting_dims = [2] x [1] : (tensor<8x32x256xf32>, tensor<64x256xf32>) -> tensor<8x32x64xf32>
    %result = stablehlo.add %y, %narrow : tensor<8x32x64xf32>
    return %result : tensor<8x32x64xf32>
  }

  func.func @main(%table: tensor<128x64xf32>, %place: tensor<32x64xf32>,
                  %norm_1_0: tensor<64xf32>, %qkv_0: tensor<192x64xf32>, %out_0: tensor<64x64xf32>, %norm_2_0: tensor<64xf32>, %up_0: tensor<256x64xf32>, %down_0: tensor<64x256xf32>,
                  %norm_1_1: tensor<64xf32>, %qkv_1: tensor<192x64xf32>, %out_1: tensor<64x64xf32>, %norm_2_1: tensor<64xf32>, %up_1: tensor<256x64xf32>, %down_1: tensor<64x256xf32>,
                  %norm_1_2: tensor<64xf32>, %qkv_2: tensor<192x64xf32>, %out_2: tensor<64x64xf32>, %norm_2_2: tensor<64xf32>, %up_2: tensor<256x64xf32>, %down_2: tensor<64x256xf32>,
                  %norm_1_3: tensor<64xf32>, %qkv_3: tensor<192x64xf32>, %out_3: tensor<64x64xf32>, %norm_2_3: tensor<64xf32>, %up_3: tensor<256x64xf32>, %down_3: tensor<64x256xf32>,
                  %norm: tensor<64xf32>, %head: tensor<10x64xf32>, %bias: tensor<10xf32>,
                  %ids: tensor<8x32xi32>) -> tensor<8x10xf32> {
    %index = stablehlo.reshape %ids : (tensor<8x32xi32>) -> tensor<8x32x1xi32>
    %found = "stablehlo.gather"(%table, %index) <{
      dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>,
      indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<128x64xf32>, tensor<8x32x1xi32>) -> tensor<8x32x64xf32>
    %places = stablehlo.broadcast_in_dim %place, dims = [1, 2] : (tensor<32x64xf32>) -> tensor<8x32x64xf32>
    %x_0 = stablehlo.add %found, %places : tensor<8x32x64xf32>

    %x_1 = call @block(%x_0, %norm_1_0, %qkv_0, %out_0, %norm_2_0, %up_0, %down_0)
      : (tensor<8x32x64xf32>, tensor<64xf32>, tensor<192x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<256x64xf32>, tensor<64x256xf32>) -> tensor<8x32x64xf32>
    %x_2 = call @block(%x_1, %norm_1_1, %qkv_1, %out_1, %norm_2_1, %up_1, %down_1)
      : (tensor<8x32x64xf32>, tensor<64xf32>, tensor<192x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<256x64xf32>, tensor<64x256xf32>) -> tensor<8x32x64xf32>
    %x_3 = call @block(%x_2, %norm_1_2, %qkv_2, %out_2, %norm_2_2, %up_2, %down_2)
      : (tensor<8x32x64xf32>, tensor<64xf32>, tensor<192x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<256x64xf32>, tensor<64x256xf32>) -> tensor<8x32x64xf32>
    %x_4 = call @block(%x_3, %norm_1_3, %qkv_3, %out_3, %norm_2_3, %up_3, %down_3)
      : (tensor<8x32x64xf32>, tensor<64xf32>, tensor<192x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<256x64xf32>, tensor<64x256xf32>) -> tensor<8x32x64xf32>

    // The mean over all characters, then the classifier.
    %last = call @rms_norm(%x_4, %norm) : (tensor<8x32x64xf32>, tensor<64xf32>) -> tensor<8x32x64xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %length = stablehlo.constant dense<32.0> : tensor<8x64xf32>
    %sum = stablehlo.reduce(%last init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x32x64xf32>, tensor<f32>) -> tensor<8x64xf32>
    %mean = stablehlo.divide %sum, %length : tensor<8x64xf32>
    %product = stablehlo.dot_general %mean, %head, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<10x64xf32>) -> tensor<8x10xf32>
    %biases = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<10xf32>) -> tensor<8x10xf32>
    %logits = stablehlo.add %product, %biases : tensor<8x10xf32>
    %powers = stablehlo.exponential %logits : tensor<8x10xf32>
    %all = stablehlo.reduce(%powers init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %alls = stablehlo.broadcast_in_dim %all, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %chances = stablehlo.divide %powers, %alls : tensor<8x10xf32>
    return %chances : tensor<8x10xf32>
  }
}
