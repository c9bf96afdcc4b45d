// RUN: alpa-opt %s -verify-diagnostics -split-input-file

// One module for each constraint that text of valid ops does not show.

// Collectives: groups and channels.

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c1: expected all_gather_dim in [0, 1), got 1}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c2: device 1 is in two groups}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1], [2, 1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c2: expected groups as rows of devices, got 'tensor<2xi64>'}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[0, 1]> : tensor<2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c3: there is no device -1}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c4: expected groups of devices 0 to 1, 1 is missing}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 2]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c4: there is no device -3}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, -3]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c5: expected a positive channel handle with use_global_device_ids, got 0}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, use_global_device_ids, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c5: expected a positive channel handle with use_global_device_ids, got 0}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, use_global_device_ids, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c5: expected a group of devices with use_global_device_ids}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids, replica_groups = dense<0> : tensor<0x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c6: expected dimension 0 of 'tensor<10xf32>' to be a positive multiple of that of 'tensor<4xf32>'}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<10xf32>
  return
}

// -----

func.func @f(%a: tensor<0xf32>) {
  // expected-error @+1 {{all_gather_c6: expected dimension 0 of 'tensor<8xf32>' to be a positive multiple of that of 'tensor<0xf32>'}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<0xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4x3xf32>) {
  // expected-error @+1 {{all_gather_c6: expected 'tensor<8x5xf32>' and 'tensor<4x3xf32>' to differ in dimension 0 only}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x3xf32>) -> tensor<8x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_gather_c6: expected 'tensor<8xf64>' and 'tensor<4xf32>' to differ in dimension 0 only}}
  %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf64>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_reduce_c1: device 1 is in two groups}}
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1, 1]]> : tensor<1x3xi64>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_reduce_c3: expected groups of devices 0 to 2, 2 is missing}}
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1, 3]]> : tensor<1x3xi64>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_reduce_c4: expected a positive channel handle with use_global_device_ids, got -1}}
  %0 = "stablehlo.all_reduce"(%a) <{channel_handle = #stablehlo.channel_handle<handle = -1, type = 1>, use_global_device_ids, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_reduce_c5: expected a computation of type '(tensor<f32>, tensor<f32>) -> tensor<f32>', got '(tensor<f32>) -> tensor<f32>'}}
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%x: tensor<f32>):
    stablehlo.return %x : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_reduce_c6: expected result type 'tensor<4xf32>', got 'tensor<5xf32>'}}
  %0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c1: expected dimension 0 of 'tensor<4xf32>' to be a positive multiple of that of 'tensor<3xf32>'}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c1: expected dimension 0 of 'tensor<4xf32>' to be a positive multiple of that of 'tensor<0xf32>'}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<0xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c2: expected scatter_dimension in [0, 1), got -1}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = -1 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c3: device 0 is in two groups}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 0]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c4: there is no device -1}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, -1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c5: expected groups of devices 0 to 1, 0 is missing}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[1, 2]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c6: expected a positive channel handle with use_global_device_ids, got 0}}
  %0 = "stablehlo.reduce_scatter"(%a) <{use_global_device_ids, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_scatter_c7: expected results of element type 'f32' or a wider one of its kind, got 'i32'}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xi32>
  return
}

// -----

func.func @f(%a: tensor<4x3xf32>) {
  // expected-error @+1 {{reduce_scatter_c8: expected 'tensor<4x3xf32>' and 'tensor<2x2xf32>' to differ in dimension 0 only}}
  %0 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4x3xf32>) -> tensor<2x2xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c1: expected split_dimension in [0, 1), got 1}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c3: expected concat_dimension in [0, 1), got -1}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = -1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c4: expected a positive split_count, got 0}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 0 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c5: device 0 is in two groups}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 0]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c7: expected groups of devices 0 to 1, 1 is missing}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 3]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c8: expected groups of split_count devices, 2, got 4}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c9: expected result type 'tensor<4xf32>', got 'tensor<8xf32>'}}
  %0 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_broadcast_c1: device 0 is in two groups}}
  %0 = "stablehlo.collective_broadcast"(%a) <{replica_groups = dense<[[0, 0]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_broadcast_c2: there is no device -1}}
  %0 = "stablehlo.collective_broadcast"(%a) <{replica_groups = dense<[[0, -1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_permute_c1: expected rows of two devices, got 'tensor<1x3xi64>'}}
  %0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1, 2]]> : tensor<1x3xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_permute_c2: source 0 is named twice}}
  %0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1], [0, 2]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_permute_c4: there is no device -1}}
  %0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, -1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// Gather and scatter: lists of dimensions.

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c2: expected index_vector_dim in [0, 2], got 3}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 3>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c3: expected 2 entries of start_index_map, got 1}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c4: dimension 1 is named twice in offset_dims}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c4: expected offset_dims in order, got [2, 1]}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 1], collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c5: expected offset_dims in [0, 2), got 2}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c6: dimension 1 is named twice in collapsed and batching dimensions}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [1, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c7: expected collapsed_slice_dims in order, got [1, 0]}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [1, 0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c8: expected collapsed_slice_dims in [0, 3), got 3}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 3], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c9: expected slices of size 1 in dimension 1, got 2}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c10: expected operand_batching_dims in order, got [1, 0]}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [1, 0], start_indices_batching_dims = [1, 0], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c11: expected operand_batching_dims in [0, 4), got 4}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 4], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c12: expected slices of size 1 in dimension 0, got 2}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 2, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c13: dimension 0 is named twice in start_indices_batching_dims}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 0], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c14: expected start_indices_batching_dims in [0, 3), got 3}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 3], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c15: index_vector_dim 2 is named in start_indices_batching_dims}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 2], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c16: expected 2 entries of start_indices_batching_dims, got 1}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c17: batching dimensions 0 of 'tensor<3x2x6x4xf32>' and 1 of 'tensor<3x2x1xi32>' differ in size}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [1, 0], start_index_map = [2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>) {
  // expected-error @+1 {{gather_c18: dimension 1 is named twice in start_index_map and batching dimensions}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1, 4>}> : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>) -> tensor<3x2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c19: expected start_index_map in [0, 3), got 5}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 5], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 4>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c20: expected 3 entries of slice_sizes, got 2}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>) {
  // expected-error @+1 {{gather_c21: expected slice sizes from 0 to 4, got 5}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 5>}> : (tensor<5x6x4xf32>, tensor<3x2xi32>) -> tensor<3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c2: expected window, inserted and batching dimensions to be 3 together, got 1, 1 and 0}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xi32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c6: expected updates of element type 'i32', got 'f32'}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    stablehlo.return %y : tensor<i32>
  }) : (tensor<5x6x4xi32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xi32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c7: expected update_window_dims in order, got [2, 1]}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c7: dimension 1 is named twice in update_window_dims}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c8: expected update_window_dims in [0, 2), got 2}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c9: dimension 1 is named twice in inserted and batching dimensions}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [1, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c10: expected inserted_window_dims in order, got [1, 0]}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [1, 0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c11: expected inserted_window_dims in [0, 3), got 3}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 3], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c12: expected input_batching_dims in order, got [1, 0]}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [1, 0], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c13: expected input_batching_dims in [0, 4), got 4}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 4], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c14: dimension 0 is named twice in scatter_indices_batching_dims}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 0], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c15: expected scatter_indices_batching_dims in [0, 3), got 3}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 3], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c16: index_vector_dim 2 is named in scatter_indices_batching_dims}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 2], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c17: expected 2 entries of scatter_indices_batching_dims, got 1}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c18: batching dimensions 0 of 'tensor<3x2x6x4xf32>' and 1 of 'tensor<3x2x1xi32>' differ in size}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [1, 0], scatter_dims_to_operand_dims = [2], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c19: expected 2 entries of scatter_dims_to_operand_dims, got 1}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3x2x6x4xf32>, %i: tensor<3x2x1xi32>, %u: tensor<3x2x4xf32>) {
  // expected-error @+1 {{scatter_c20: dimension 1 is named twice in scatter_dims_to_operand_dims and batching dimensions}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<3x2x6x4xf32>, tensor<3x2x1xi32>, tensor<3x2x4xf32>) -> tensor<3x2x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c21: expected scatter_dims_to_operand_dims in [0, 3), got 3}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 3], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x6x4xf32>, %i: tensor<3x2xi32>, %u: tensor<3x4xf32>) {
  // expected-error @+1 {{scatter_c22: expected index_vector_dim in [0, 2], got 3}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 3>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<5x6x4xf32>, tensor<3x2xi32>, tensor<3x4xf32>) -> tensor<5x6x4xf32>
  return
}

// -----

// Contractions: element types, groups, algorithms.

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c21: expected precision DEFAULT with an algorithm, got #stablehlo<precision HIGH>}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], precision = [HIGH, DEFAULT], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c22: expected a positive lhs_component_count, got 0}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 0, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c23: expected a positive rhs_component_count, got -1}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = -1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c24: expected a positive num_primitive_operations, got 0}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 0, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c24: no hardware is known to have #stablehlo.dot_algorithm<lhs_precision_type = bf16, rhs_precision_type = b}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 2, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c24: no hardware is known to have #stablehlo.dot_algorithm<lhs_precision_type = f16, rhs_precision_type = bf}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c24: no hardware is known to have #stablehlo.dot_algorithm<lhs_precision_type = f32, rhs_precision_type = f3}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = true> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c24: no hardware is known to have #stablehlo.dot_algorithm<lhs_precision_type = i8, rhs_precision_type = i8,}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = i8, rhs_precision_type = i8, accumulation_type = i32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x4x6xf32>) {
  // expected-error @+1 {{convolution_c1: expected operands of one rank of at least 2, got 'tensor<4x8x8x4xf32>' and 'tensor<3x4x6xf32>'}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c9: expected 2 entries of reverse, got 1}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c10: expected batch_group_count 3 to divide 4}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 3 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c11: expected feature_group_count 3 to divide 4}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 3 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c12: expected 4 entries of input dimensions, got 3}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c15: expected batch_group_count 4 to divide 6}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 4 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x1x6xf32>) {
  // expected-error @+1 {{convolution_c16: expected feature_group_count 4 to divide 6}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 4 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x1x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c17: expected 4 entries of kernel dimensions, got 3}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c19: expected 4 entries of output dimensions, got 3}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c21: expected a positive feature_group_count, got -1}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = -1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c22: expected a positive batch_group_count, got 0}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 0 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x2x6xf32>) {
  // expected-error @+1 {{convolution_c23: expected one group count to be 1}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 2 : i64, feature_group_count = 2 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x2x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf32>) {
  // expected-error @+1 {{convolution_c24: expected 0 or 2 precisions, got 1}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision HIGH>]} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x6x6x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x8x8x4xf32>, %w: tensor<3x3x4x6xf16>) {
  // expected-error @+1 {{convolution_c27: expected operands of one element type, got 'tensor<4x8x8x4xf32>' and 'tensor<3x3x4x6xf16>'}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<3x3x4x6xf16>) -> tensor<4x6x6x6xf32>
  return
}

// -----

// Other constraints.

func.func @f(%a: tensor<4xi32>, %i: tensor<f32>) {
  // expected-error @+1 {{reduce_c2: expected an initial value of element type 'i32', got 'tensor<f32>'}}
  %0 = stablehlo.reduce(%a init: %i) across dimensions = [0] : (tensor<4xi32>, tensor<f32>) -> tensor<i32>
   reducer(%x: tensor<i32>, %y: tensor<i32>) {
    stablehlo.return %x : tensor<i32>
  }
  return
}

// -----

func.func @f(%a: tensor<4xi32>, %i: tensor<i8>) {
  // expected-error @+1 {{reduce_c6: expected results of element type 'i32' or a wider one of its kind, got 'i8'}}
  %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
  ^bb0(%x: tensor<i8>, %y: tensor<i8>):
    stablehlo.return %x : tensor<i8>
  }) : (tensor<4xi32>, tensor<i8>) -> tensor<i8>
  return
}

// -----

func.func @f(%a: tensor<4xcomplex<f64>>, %i: tensor<complex<f32>>) {
  // expected-error @+1 {{reduce_c6: expected results of element type 'complex<f64>' or a wider one of its kind, got 'complex<f32>'}}
  %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
  ^bb0(%x: tensor<complex<f32>>, %y: tensor<complex<f32>>):
    stablehlo.return %x : tensor<complex<f32>>
  }) : (tensor<4xcomplex<f64>>, tensor<complex<f32>>) -> tensor<complex<f32>>
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %i: tensor<i32>) {
  // expected-error @+1 {{reduce_c6: expected results of element type 'f32' or a wider one of its kind, got 'i32'}}
  %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    stablehlo.return %x : tensor<i32>
  }) : (tensor<4xf32>, tensor<i32>) -> tensor<i32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>, %s: tensor<4xf32>, %i: tensor<f32>) {
  // expected-error @+1 {{select_and_scatter_c5: expected positive window sizes, got 0}}
  %0 = "stablehlo.select_and_scatter"(%a, %s, %i) <{window_dimensions = array<i64: 0>, window_strides = array<i64: 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8xf32>, tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{fft_c4: 'tensor<8xf32>' does not fit the lengths}}
  %0 = stablehlo.fft %a, type = RFFT, length = [6] : (tensor<8xf32>) -> tensor<5xcomplex<f32>>
  return
}

// -----

func.func @f(%a: tensor<8xcomplex<f32>>) {
  // expected-error @+1 {{fft_c5: 'tensor<8xf32>' does not fit 'tensor<8xcomplex<f32>>'}}
  %0 = stablehlo.fft %a, type = IRFFT, length = [8] : (tensor<8xcomplex<f32>>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c2: the results have no part at the indices of #stablehlo.output_operand_alias<output_tuple_indices = [1], o}}
  %0 = stablehlo.custom_call @f(%a) {output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 0, operand_tuple_indices = []>]} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c2: the operand has no part at the indices of #stablehlo.output_operand_alias<output_tuple_indices = [], ope}}
  %0 = stablehlo.custom_call @f(%a) {output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = [0]>]} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c2: an alias of 'tensor<4xf32>' cannot be a result of type 'tensor<5xf32>'}}
  %0:2 = stablehlo.custom_call @f(%a) {output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 0, operand_tuple_indices = []>]} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<5xf32>)
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c3: expected an api_version from 0 to 4, got 5}}
  %0 = stablehlo.custom_call @f(%a) {api_version = 5 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c4: expected backend_config to be a dictionary with api_version 4, got ""}}
  %0 = stablehlo.custom_call @f(%a) {api_version = 4 : i32, backend_config = ""} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c4: expected backend_config to be a string with api_version 2, got {}}}
  %0 = stablehlo.custom_call @f(%a) {api_version = 2 : i32, backend_config = {}} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{custom_call_c4: expected backend_config to be a string with api_version 1, got 3 : i32}}
  %0 = stablehlo.custom_call @f(%a) {backend_config = 3 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result_accuracy_c1: expected tolerances not to be negative}}
  %0 = stablehlo.tanh %a {result_accuracy = #stablehlo.result_accuracy<ulps = -1, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result_accuracy_c1: expected tolerances not to be negative}}
  %0 = stablehlo.tanh %a {result_accuracy = #stablehlo.result_accuracy<atol = -1.0, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result_accuracy_c2: expected no tolerances with mode DEFAULT}}
  %0 = stablehlo.tanh %a {result_accuracy = #stablehlo.result_accuracy<ulps = 1, mode = #stablehlo.result_accuracy_mode<DEFAULT>>} : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result_accuracy_c2: expected no tolerances with mode HIGHEST}}
  %0 = stablehlo.tanh %a {result_accuracy = #stablehlo.result_accuracy<rtol = 1.0, mode = #stablehlo.result_accuracy_mode<HIGHEST>>} : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result #0 must be statically shaped tensor of integer or floating-point or complex of f32 or f64 values, but got 'tensor<?xf32>'}}
  %0 = stablehlo.iota dim = 0 : tensor<?xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{result #0 must be statically shaped tensor of i1 or integer or floating-point or complex of f32 or f64 values, but got 'tensor<?xf32>'}}
  %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<?xf32>
  return
}

// -----

func.func @f(%a: tensor<f32>) {
  // expected-error @+1 {{result #0 must be statically shaped tensor of i1 or integer or floating-point or complex of f32 or f64 values, but got 'tensor<?xf32>'}}
  %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<?xf32>
  return
}

// -----

func.func @f(%a: tensor<4xui32>) {
  // expected-error @+1 {{operand #0 must be ranked tensor of 2/4/8/16/32/64-bit signless integer or floating-point or complex of f32 or f64 values, but got 'tensor<4xui32>'}}
  %0 = stablehlo.sign %a : tensor<4xui32>
  return
}

// -----

func.func @f(%a: tensor<4xtf32>) {
  // expected-error @+1 {{operand #0 must be ranked tensor of i1 or integer or floating-point or complex of f32 or f64 values, but got 'tensor<4xtf32>'}}
  %0 = stablehlo.add %a, %a : tensor<4xtf32>
  return
}
