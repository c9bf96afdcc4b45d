//===- AlpaOps.td - what each mesh does during one step -------------------===//

#ifndef ALPA_DIALECTS_ALPA_ALPAOPS
#define ALPA_DIALECTS_ALPA_ALPAOPS

include "dialects/Alpa/AlpaAttrs.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Alpa_Buffer : RankedTensorOf<[AnyType]>;

class Alpa_Op<string mnemonic, list<Trait> traits = []> : Op<Alpa_Dialect, mnemonic, traits> {
  let hasVerifier = 1;
}

class Alpa_Instruction<string mnemonic, list<Trait> traits = []>
    : Alpa_Op<mnemonic, !listconcat([HasParent<"::alpa::ProgramOp">], traits)>;

def Alpa_ReshardOp : Alpa_Op<"reshard", [Pure, SameOperandsAndResultType]> {
  let summary = "The same tensor, held otherwise by the devices of its mesh";
  let description = [{
    Stands in functions whose ops have shardings, and in programs, wherever a value
    is used otherwise than it is held. `through` lists the specs between `from` and `to`:
    each spec is one step (slice, all-gather, all-to-all or permute) from the one
    before it.

    ```mlir
    %1 = alpa.reshard %0 {from = #alpa.sharding<[S01, R]>, through = [#alpa.sharding<[S0, R]>],
                          to = #alpa.sharding<[R, R]>} : tensor<8x4xf32>
    ```

    Constraints:
    - alpa_reshard_c1: each spec has one entry for each dimension.
    - alpa_reshard_c2: no spec equals the one before it.
  }];
  let arguments = (ins Alpa_Buffer:$operand, Alpa_ShardingAttr:$from,
                       DefaultValuedOptionalAttr<ArrayAttr, "{}">:$through, Alpa_ShardingAttr:$to);
  let results = (outs Alpa_Buffer:$result);
  let assemblyFormat = "$operand attr-dict `:` type($result)";
  let extraClassDeclaration = [{
    /// The specs after `from`, `to` included.
    ::llvm::SmallVector<::alpa::ShardingSpec> specsAfterFrom();
  }];
}

def Alpa_SumOfStagesOp : Alpa_Op<"sum_of_stages", [Pure, SameOperandsAndResultType]> {
  let summary = "The sum of what several stages know";
  let description = [{
    Stands in the update of a step that is not sliced yet, between
    alpa-gather-sums and alpa-slice-stages. `stages` says for each part which
    stage gives it. No stage computes the sum: the parts leave their stages, and
    each stage that uses the sum gets it.

    ```mlir
    %s = alpa.sum_of_stages %0, %1 of [0, 2] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    ```

    Constraints:
    - alpa_sum_of_stages_c1: there are at least two parts, and as many stages, which
      rise and are not negative.
    - alpa_sum_of_stages_c2: elements are numbers, not truth values.
  }];
  let arguments = (ins Variadic<Alpa_Buffer>:$parts, DenseI64ArrayAttr:$stages);
  let results = (outs Alpa_Buffer:$sum);
  let assemblyFormat = "$parts `of` $stages attr-dict `:` type($sum)";
}

def Alpa_GroupedDotOp : Alpa_Op<"grouped_dot", [Pure]> {
  let summary = "Each row times the weights of its group";
  let description = [{
    Row i of the result is row i of `rows` times `weights[groups[i]]`, contracted with
    dimension `contracting` of `weights`, or zero if there is no such group: what sorting
    rows by their group, `chlo.ragged_dot` and going back to the old order give, without
    an order.

    ```mlir
    %y = alpa.grouped_dot %x, %w of %expert {contracting = 1 : i64}
        : (tensor<64x8xf32>, tensor<4x8x16xf32>, tensor<64xi32>) -> tensor<64x16xf32>
    ```

    Constraints:
    - alpa_grouped_dot_c1: rows have two dimensions, weights three, groups one, of whole numbers.
    - alpa_grouped_dot_c2: `contracting` is 1 or 2.
    - alpa_grouped_dot_c3: there is one group for each row, and contracted dimensions have
      one size.
    - alpa_grouped_dot_c4: the result has a row for each row, of the weights' other dimension.
  }];
  let arguments = (ins Alpa_Buffer:$rows, Alpa_Buffer:$weights, Alpa_Buffer:$groups,
                       I64Attr:$contracting, OptionalAttr<ArrayAttr>:$precision_config);
  let results = (outs Alpa_Buffer:$result);
  let assemblyFormat = [{
    $rows `,` $weights `of` $groups attr-dict `:` functional-type(operands, $result)
  }];
}

def Alpa_GroupedSumOp : Alpa_Op<"grouped_sum", [Pure]> {
  let summary = "For each group the product of its rows, summed over them";
  let description = [{
    Group g of the result is the sum over the rows i with `groups[i] = g` of `lhs[i]`
    times `rhs[i]`, an outer product: the gradient of weights of `alpa.grouped_dot`. Leading
    dimensions that all have are those of batches, each with a sum of its own: rounds of a
    loop, and the terms that devices hold (alpa-defer-sums).

    ```mlir
    %dw = alpa.grouped_sum %x, %dy of %expert
        : (tensor<64x8xf32>, tensor<64x16xf32>, tensor<64xi32>) -> tensor<4x8x16xf32>
    ```

    Constraints:
    - alpa_grouped_sum_c1: lhs and rhs have two dimensions behind those of batches, and groups
      one, of whole numbers.
    - alpa_grouped_sum_c2: there are as many batches and rows on either side as groups are listed.
    - alpa_grouped_sum_c3: the result has the batches, a dimension of groups, and the last ones
      of lhs and rhs.
  }];
  let arguments = (ins Alpa_Buffer:$lhs, Alpa_Buffer:$rhs, Alpa_Buffer:$groups,
                       OptionalAttr<ArrayAttr>:$precision_config);
  let results = (outs Alpa_Buffer:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs `of` $groups attr-dict `:` functional-type(operands, $result)
  }];
}

def Alpa_MapOp : Alpa_Op<"map", [Pure, IsolatedFromAbove, SingleBlock]> {
  let summary = "The same computation for every index of leading dimensions";
  let description = [{
    A kernel that was written for one device's block of its arrays (in a `jax.shard_map`), and
    that nobody can look into, is called once for each block. Results begin with `levels`
    dimensions, one for each mesh axis of the program; operand i begins with those that
    `dims[i]` lists, and is the same for all indices of others. Levels are split over devices
    and micro-batches like any dimension; blocks never are.

    ```mlir
    %y = alpa.map %x, %w {dims = [array<i64: 0, 1>, array<i64: 1>], levels = 2 : i64}
        : (tensor<2x4x8x16xf32>, tensor<4x16xf32>) -> tensor<2x4x8xf32> {
    ^bb0(%block: tensor<8x16xf32>, %vector: tensor<16xf32>):
      %0 = stablehlo.custom_call @kernel(%block, %vector) ..
      stablehlo.return %0 : tensor<8xf32>
    }
    ```

    Constraints:
    - alpa_map_c1: `dims` lists, for each operand, levels that rise and of which there are
      `levels`.
    - alpa_map_c2: a level has one size in all operands and results.
    - alpa_map_c3: the body takes operands and gives results without their leading dimensions.
  }];
  let arguments = (ins Variadic<Alpa_Buffer>:$blocks, ArrayAttr:$dims, I64Attr:$levels);
  let regions = (region SizedRegion<1>:$body);
  let results = (outs Variadic<Alpa_Buffer>:$results);
  let assemblyFormat = "$blocks attr-dict `:` functional-type($blocks, $results) $body";
  let extraClassDeclaration = [{
    /// The levels that an operand begins with.
    ::llvm::ArrayRef<int64_t> levelsOf(unsigned operand);
    /// Sizes of the levels. With results alone they are known.
    ::llvm::ArrayRef<int64_t> levelSizes();
  }];
}

def Alpa_ProgramOp
    : Alpa_Op<"program", [IsolatedFromAbove, Symbol, SingleBlock, NoTerminator, NoRegionArguments]> {
  let summary = "The instruction list of one mesh for one step";
  let description = [{
    Instructions run in order; buffers are SSA values on the mesh's devices.
    An attribute `peak_bytes : i64` promises how much memory a device needs for them
    at most; alpa-verify-program checks it.

    ```mlir
    alpa.program @mesh_0 on 0 {
      %x = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[S0]>} : tensor<8xf32>
      alpa.output %x {result = 0 : i64} : tensor<8xf32>
    }
    ```

    Constraints:
    - alpa_program_c1: the mesh number is not negative.
    - alpa_program_c2: the body holds instructions of this dialect only; `alpa.reshard`
      is one, for a value that two stages of the mesh hold otherwise.
    - alpa_program_c3: no instruction uses a buffer that was freed or output.
    - alpa_program_c4: no buffer is freed or output twice.
    - alpa_program_c5: every buffer is freed or output.
    - alpa_program_c6: `peak_bytes` is not negative.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$mesh);
  let regions = (region SizedRegion<1>:$bodyRegion);
  let assemblyFormat = "$sym_name `on` $mesh attr-dict-with-keyword $bodyRegion";
}

def Alpa_InputOp : Alpa_Instruction<"input"> {
  let summary = "An argument of the step, laid out on this mesh";
  let description = [{
    Constraints:
    - alpa_input_c1: `arg` and `micro_batch` are not negative.
    - alpa_input_c2: the sharding has one entry for each dimension.
  }];
  let arguments = (ins I64Attr:$arg, OptionalAttr<I64Attr>:$micro_batch, Alpa_ShardingAttr:$sharding);
  let results = (outs Alpa_Buffer:$buffer);
  let assemblyFormat = "attr-dict `:` type($buffer)";
}

def Alpa_RunOp : Alpa_Instruction<"run", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Calls a function of a stage on this mesh";
  let description = [{
    Constraints:
    - alpa_run_c1: the callee is a function in a stage's module.
    - alpa_run_c2: operand and result types are the function's (of whole tensors,
      if the function works on parts).
    - alpa_run_c3: `micro_batch` is not negative.
  }];
  let arguments = (ins SymbolRefAttr:$callee, Variadic<Alpa_Buffer>:$inputs,
                       OptionalAttr<I64Attr>:$micro_batch);
  let results = (outs Variadic<Alpa_Buffer>:$outputs);
  let assemblyFormat = "$callee `(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)";
}

def Alpa_SendOp : Alpa_Instruction<"send", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Hands a buffer to another mesh, without waiting";
  let description = [{
    `by` names the `alpa.cross_mesh_reshard` that says what goes where;
    alpa-plan-transfers sets it.

    ```mlir
    alpa.send %x to 1 tag 4 by @reshard_0 : tensor<8x64xf32>
    ```

    Constraints:
    - alpa_send_c1: peer and tag are not negative, and the peer is another mesh.
    - alpa_send_c2: `by` names an `alpa.cross_mesh_reshard` of the buffer's type.
  }];
  let arguments = (ins Alpa_Buffer:$buffer, I64Attr:$peer, I64Attr:$tag,
                       OptionalAttr<FlatSymbolRefAttr>:$by);
  let assemblyFormat = "$buffer `to` $peer `tag` $tag (`by` $by^)? attr-dict `:` type($buffer)";
  let builders = [OpBuilder<(ins "::mlir::Value":$buffer, "::mlir::IntegerAttr":$peer,
                                 "::mlir::IntegerAttr":$tag), [{
    build($_builder, $_state, buffer, peer, tag, ::mlir::FlatSymbolRefAttr());
  }]>];
}

def Alpa_RecvOp : Alpa_Instruction<"recv", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Waits for the buffer that another mesh sends under a tag";
  let description = [{
    `by` is as on the send.

    Constraints:
    - alpa_recv_c1: peer and tag are not negative, and the peer is another mesh.
    - alpa_recv_c2: the sharding has one entry for each dimension.
    - alpa_recv_c3: `by` names an `alpa.cross_mesh_reshard` of the buffer's type to
      its sharding.
  }];
  let arguments = (ins I64Attr:$peer, I64Attr:$tag, Alpa_ShardingAttr:$sharding,
                       OptionalAttr<FlatSymbolRefAttr>:$by);
  let results = (outs Alpa_Buffer:$buffer);
  let assemblyFormat = "`from` $peer `tag` $tag (`by` $by^)? attr-dict `:` type($buffer)";
  let builders = [OpBuilder<(ins "::mlir::Type":$type, "::mlir::IntegerAttr":$peer,
                                 "::mlir::IntegerAttr":$tag, "::alpa::ShardingAttr":$sharding), [{
    build($_builder, $_state, type, peer, tag, sharding, ::mlir::FlatSymbolRefAttr());
  }]>];
}

def Alpa_AccumulateOp : Alpa_Instruction<"accumulate", [SameOperandsAndResultType]> {
  let summary = "The sum of two buffers, piece by piece";
  let description = [{
    `left` is the sum so far and may be reused for the result if it is freed
    next.

    Constraints:
    - alpa_accumulate_c1: elements are numbers, not truth values.
  }];
  let arguments = (ins Alpa_Buffer:$left, Alpa_Buffer:$right);
  let results = (outs Alpa_Buffer:$sum);
  let assemblyFormat = "$left `,` $right attr-dict `:` type($sum)";
}

def Alpa_ZeroOp : Alpa_Instruction<"zero"> {
  let summary = "A buffer of zeros, laid out on this mesh";
  let description = [{
    The part of a mesh that uses a sum of several meshes and adds nothing to it.

    Constraints:
    - alpa_zero_c1: the sharding has one entry for each dimension.
    - alpa_zero_c2: elements are numbers, not truth values.
  }];
  let arguments = (ins Alpa_ShardingAttr:$sharding);
  let results = (outs Alpa_Buffer:$buffer);
  let assemblyFormat = "attr-dict `:` type($buffer)";
}

def Alpa_AllReduceOp : Alpa_Instruction<"all_reduce", [SameOperandsAndResultType]> {
  let summary = "The sum of one buffer of each of several meshes, on all of them";
  let description = [{
    Stands once in the program of each member, with one tag, and waits for all of
    them. The first member takes the sum, in rising order of meshes, and sends it
    to the others, so that all have the same bits. Each mesh holds the result as
    it holds the operand, which stays as it is.

    `by` names how the buffer crosses to the first member and how the sum comes
    back; the first member itself has none.

    ```mlir
    %s = alpa.all_reduce %x among [0, 1, 3] tag 9 by @reshard_4, @reshard_5 : tensor<f32>
    ```

    Constraints:
    - alpa_all_reduce_c1: there are at least two members; they rise and are not
      negative.
    - alpa_all_reduce_c2: the program's mesh is a member.
    - alpa_all_reduce_c3: the tag is not negative.
    - alpa_all_reduce_c4: elements are numbers, not truth values.
    - alpa_all_reduce_c5: the first member has no `by`.
  }];
  let arguments = (ins Alpa_Buffer:$buffer, DenseI64ArrayAttr:$members, I64Attr:$tag,
                       OptionalAttr<FlatSymbolRefAttr>:$to, OptionalAttr<FlatSymbolRefAttr>:$back);
  let results = (outs Alpa_Buffer:$sum);
  let assemblyFormat = "$buffer `among` $members `tag` $tag (`by` $to^ `,` $back)? "
                       "attr-dict `:` type($sum)";
}

def Alpa_FreeOp : Alpa_Instruction<"free"> {
  let summary = "Buffers that no later instruction uses";
  let description = [{
    Constraints:
    - alpa_free_c1: there is at least one buffer, and none twice.
  }];
  let arguments = (ins Variadic<Alpa_Buffer>:$buffers);
  let assemblyFormat = "$buffers attr-dict `:` type($buffers)";
}

def Alpa_OutputOp : Alpa_Instruction<"output"> {
  let summary = "A result of the step; takes the buffer over";
  let description = [{
    With `micro_batch`, the part of a concatenated result that this micro-batch
    makes.

    Constraints:
    - alpa_output_c1: `result` and `micro_batch` are not negative.
  }];
  let arguments = (ins Alpa_Buffer:$buffer, I64Attr:$result, OptionalAttr<I64Attr>:$micro_batch);
  let assemblyFormat = "$buffer attr-dict `:` type($buffer)";
}

include "dialects/Alpa/AlpaReshardOps.td"

#endif // ALPA_DIALECTS_ALPA_ALPAOPS
