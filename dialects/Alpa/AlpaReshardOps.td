//===- AlpaReshardOps.td - how a tensor gets to another mesh --------------===//

#ifndef ALPA_DIALECTS_ALPA_ALPARESHARDOPS
#define ALPA_DIALECTS_ALPA_ALPARESHARDOPS

include "dialects/Alpa/AlpaOps.td"

def Alpa_CrossMeshReshardOp
    : Alpa_Op<"cross_mesh_reshard",
              [IsolatedFromAbove, Symbol, SingleBlock, NoTerminator, NoRegionArguments]> {
  let summary = "Which parts of a tensor go from which device to which";
  let description = [{
    A tensor that one mesh holds, on its way to another mesh that wants it held
    otherwise; sends and receives name it with `by`. The meshes may have unequal
    sizes and shapes, and may share hosts or devices.

    The body is empty until alpa-plan-transfers. Then it is the plan: steps on
    tiles. A tile is a box of the tensor on one device; devices are the cluster's
    numbers. Steps that do not need each other run at the same time, as far as links
    allow; where steps compete for a link, the earlier one goes first.

    A device of the target mesh puts its shard together from the tiles that lie on
    it: those that it received, those that were cut on it and lie in its shard, and
    what was gathered, in place of the tiles that it was gathered from.

    ```mlir
    alpa.cross_mesh_reshard @reshard_0 : tensor<8x4xf32>
        from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
        to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2], devices = [2, 3]>
        attributes {seconds = 1.0e-05 : f64, slow_bytes = 0 : i64, strategy = "broadcast"} {
      %0 = alpa.tile on 0 at [0, 0] : tensor<4x4xf32>
      %1:2 = alpa.broadcast %0 to [2, 3] chunks 1 : tensor<4x4xf32>
      %2 = alpa.tile on 1 at [4, 0] : tensor<4x4xf32>
      %3:2 = alpa.broadcast %2 to [3, 2] chunks 1 : tensor<4x4xf32>
    }
    ```

    `strategy` says how the plan was made, `seconds` what it takes by itself, as the
    cost model foresees, and `slow_bytes` how many bytes go from host to host.

    Constraints:
    - alpa_cross_mesh_reshard_c1: the tensor's sizes are known, and each spec fits it and
      its mesh: one entry for each dimension, no axis that the mesh has not, no sums that are still to be taken,
      and every dimension divisible by its pieces.
    - alpa_cross_mesh_reshard_c2: the body holds steps only: `alpa.tile`,
      `alpa.send_tile`, `alpa.broadcast` and `alpa.all_gather`.
    - alpa_cross_mesh_reshard_c3: unless the body is empty, the tiles that lie on a
      device of the target mesh cover each element of its shard once.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<Alpa_Buffer>:$type,
                       Alpa_ShardingAttr:$source, Alpa_MeshAttr:$source_mesh,
                       Alpa_ShardingAttr:$target, Alpa_MeshAttr:$target_mesh,
                       OptionalAttr<StrAttr>:$strategy, OptionalAttr<F64Attr>:$seconds,
                       OptionalAttr<I64Attr>:$slow_bytes);
  let regions = (region SizedRegion<1>:$bodyRegion);
  let assemblyFormat = [{
    $sym_name `:` $type `from` qualified($source) `on` qualified($source_mesh)
    `to` qualified($target) `on` qualified($target_mesh)
    attr-dict-with-keyword $bodyRegion
  }];
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
    /// Whether the body is a plan. Nothing needs to be done for a tensor without elements.
    bool isPlanned() { return !getBody()->empty() || getTensorType().getNumElements() == 0; }
  }];
}

// The op around them verifies steps: where a tile lies follows from the steps before.
class Alpa_ReshardStep<string mnemonic, list<Trait> traits = []>
    : Alpa_Op<mnemonic, !listconcat([HasParent<"::alpa::CrossMeshReshardOp">], traits)> {
  let hasVerifier = 0;
}

def Alpa_TileOp : Alpa_ReshardStep<"tile"> {
  let summary = "A box cut from the shard that a device of the source mesh holds";
  let description = [{
    The type has the box's sizes, `at` where it begins in the whole tensor. Nothing
    moves. On a device that is in the target mesh too, the tile lies there already.

    Constraints:
    - alpa_tile_c1: the device is in the source mesh.
    - alpa_tile_c2: the box lies in the shard that the device holds, and has the
      tensor's element type.
    - alpa_tile_c3: the box has elements, and on a device of the target mesh lies
      either in the shard that is wanted there or beside it.
  }];
  let arguments = (ins I64Attr:$device, DenseI64ArrayAttr:$offsets);
  let results = (outs Alpa_Buffer:$tile);
  let assemblyFormat = "`on` $device `at` $offsets attr-dict `:` type($tile)";
}

def Alpa_SendTileOp : Alpa_ReshardStep<"send_tile", [SameOperandsAndResultType]> {
  let summary = "A copy of a tile on another device";
  let description = [{
    The send of one device and the receive of another in one op: the operand is what
    is sent and where it lies, the result what is received. Two ops would have to be
    paired by tags, and one without its other half, or two halves in orders that wait
    for each other, could be written. As it is, neither can.

    Constraints:
    - alpa_send_tile_c1: the device is in the target mesh, and is not the tile's own.
    - alpa_send_tile_c2: the tile lies in the shard that the device wants.
  }];
  let arguments = (ins Alpa_Buffer:$tile, I64Attr:$device);
  let results = (outs Alpa_Buffer:$copy);
  let assemblyFormat = "$tile `to` $device attr-dict `:` type($tile)";
}

def Alpa_BroadcastOp
    : Alpa_ReshardStep<"broadcast", [DeclareOpInterfaceMethods<InferTypeOpInterface>]> {
  let summary = "Copies of a tile on a chain of devices";
  let description = [{
    The devices stand behind the tile's in a chain, in this order. The tile is sent in
    `chunks` equal pieces: each device hands one on while it receives the next. Each
    link of the chain carries the tile once.

    Constraints:
    - alpa_broadcast_c1: there is at least one chunk and at least one device; devices
      are in the target mesh, differ from each other and from the tile's own.
    - alpa_broadcast_c2: the tile lies in the shard that each of them wants.
  }];
  let arguments = (ins Alpa_Buffer:$tile, DenseI64ArrayAttr:$devices, I64Attr:$chunks);
  let results = (outs Variadic<Alpa_Buffer>:$copies);
  let assemblyFormat = "$tile `to` $devices `chunks` $chunks attr-dict `:` type($tile)";
}

def Alpa_AllGatherOp : Alpa_ReshardStep<"all_gather"> {
  let summary = "Devices that hold parts of a box all get the box";
  let description = [{
    The result with an operand's number is the whole box on that operand's device,
    and takes the operand's place there. Parts go around a ring of the devices, in
    this order.

    ```mlir
    %2:2 = alpa.all_gather %0, %1 : (tensor<2x4xf32>, tensor<2x4xf32>)
                                    -> (tensor<4x4xf32>, tensor<4x4xf32>)
    ```

    Constraints:
    - alpa_all_gather_c1: there are at least two tiles, all on different devices of the
      target mesh, and none is gathered twice.
    - alpa_all_gather_c2: the tiles' boxes do not overlap and join to one box; there is
      one result of its type for each of them.
    - alpa_all_gather_c3: that box lies in the shard that each of the devices wants.
  }];
  let arguments = (ins Variadic<Alpa_Buffer>:$tiles);
  let results = (outs Variadic<Alpa_Buffer>:$wholes);
  let assemblyFormat = "$tiles attr-dict `:` functional-type($tiles, $wholes)";
}

#endif // ALPA_DIALECTS_ALPA_ALPARESHARDOPS
