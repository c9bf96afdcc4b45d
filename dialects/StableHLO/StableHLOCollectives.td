//===- StableHLOCollectives.td - ops between devices ----------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOCOLLECTIVES
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOCOLLECTIVES

include "dialects/StableHLO/StableHLOBase.td"

def HLO_Channel : OptionalAttr<Stablehlo_ChannelHandle>;

def Stablehlo_PartitionIdOp : HLO_Op<"partition_id", [Pure]> {
  let summary = "number of this device's partition";
  let results = (outs 0DTensorOf<[UI32]>:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}
def Stablehlo_ReplicaIdOp : HLO_Op<"replica_id", [Pure]> {
  let summary = "number of this device's replica";
  let results = (outs 0DTensorOf<[UI32]>:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}
def Stablehlo_AllGatherOp : HLO_Op<"all_gather"> {
  let summary = "the group's tensors one behind the other";
  let description = [{
    - `all_gather_c1`: `all_gather_dim` is a dimension of the operands.
    - `all_gather_c2`: no device is in two groups.
    - `all_gather_c3`: groups are of one size.
    - `all_gather_c4`: groups list all devices by number, from 0.
    - `all_gather_c5`: `use_global_device_ids` has a positive channel and a group.
    - `all_gather_c6`: results have the operands' shapes, times the devices of a
      group in that dimension (a multiple: groups of replicas take all partitions).
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$operands, I64Attr:$all_gather_dim,
                       I64ElementsAttr:$replica_groups, HLO_Channel:$channel_handle,
                       UnitAttr:$use_global_device_ids);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}
def Stablehlo_AllReduceOp : HLO_Op<"all_reduce", [SingleBlock]> {
  let summary = "the group's tensors combined, on every device";
  let description = [{
    - `all_reduce_c1`: no device is in two groups.
    - `all_reduce_c3`: groups list all devices by number, from 0; -1 fills short groups.
    - `all_reduce_c4`: `use_global_device_ids` has a positive channel and a group.
    - `all_reduce_c5`: the computation combines two scalars to one.
    - `all_reduce_c6`: results have the operands' shapes.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$operands, I64ElementsAttr:$replica_groups,
                       HLO_Channel:$channel_handle, UnitAttr:$use_global_device_ids);
  let regions = (region SizedRegion<1>:$computation);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}
def Stablehlo_AllToAllOp : HLO_Op<"all_to_all"> {
  let summary = "parts exchanged between the devices of a group";
  let description = [{
    - `all_to_all_c1`: `split_dimension` is a dimension of the operands.
    - `all_to_all_c2`: `split_count` divides it.
    - `all_to_all_c3`: `concat_dimension` is a dimension of the operands.
    - `all_to_all_c4`: `split_count` is positive.
    - `all_to_all_c5`: no device is in two groups.
    - `all_to_all_c7`: groups list all devices by number, from 0.
    - `all_to_all_c8`: groups have `split_count` devices.
    - `all_to_all_c9`: results have the exchanged shapes.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$operands, I64Attr:$split_dimension,
                       I64Attr:$concat_dimension, I64Attr:$split_count,
                       I64ElementsAttr:$replica_groups, HLO_Channel:$channel_handle);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}
def Stablehlo_CollectiveBroadcastOp
    : HLO_OneTypeOp<"collective_broadcast"> {
  let summary = "the first device's tensor on every device of a group";
  let description = [{
    - `collective_broadcast_c1`: no device is in two groups.
    - `collective_broadcast_c2`: groups list devices by number.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, I64ElementsAttr:$replica_groups,
                       HLO_Channel:$channel_handle);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}
def Stablehlo_CollectivePermuteOp : HLO_OneTypeOp<"collective_permute"> {
  let summary = "tensors sent from sources to targets";
  let description = [{
    - `collective_permute_c1`: pairs are rows of two.
    - `collective_permute_c2`: no source is named twice.
    - `collective_permute_c3`: no target is named twice.
    - `collective_permute_c4`: devices are not negative.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, I64ElementsAttr:$source_target_pairs,
                       HLO_Channel:$channel_handle);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}
def Stablehlo_ReduceScatterOp : HLO_Op<"reduce_scatter", [SingleBlock]> {
  let summary = "the group's tensors combined, each device a part";
  let description = [{
    - `reduce_scatter_c1`: the operand's size in `scatter_dimension` is a multiple of
      the result's (by the devices of a group; groups of replicas take all partitions).
    - `reduce_scatter_c2`: `scatter_dimension` is a dimension of the operand.
    - `reduce_scatter_c3`: no device is in two groups.
    - `reduce_scatter_c4`: groups are of one size.
    - `reduce_scatter_c5`: groups list all devices by number, from 0.
    - `reduce_scatter_c6`: `use_global_device_ids` has a positive channel and a group.
    - `reduce_scatter_c7`: the computation combines two scalars to one.
    - `reduce_scatter_c8`: the result has the operand's shape in other dimensions.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, I64Attr:$scatter_dimension,
                       I64ElementsAttr:$replica_groups, HLO_Channel:$channel_handle,
                       UnitAttr:$use_global_device_ids);
  let regions = (region SizedRegion<1>:$computation);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOCOLLECTIVES
