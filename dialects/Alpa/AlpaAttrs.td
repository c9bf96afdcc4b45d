//===- AlpaAttrs.td - shardings, meshes and stages ------------------------===//

#ifndef ALPA_DIALECTS_ALPA_ALPAATTRS
#define ALPA_DIALECTS_ALPA_ALPAATTRS

include "dialects/Alpa/AlpaDialect.td"
include "mlir/IR/AttrTypeBase.td"

class Alpa_Attr<string name, string attrMnemonic> : AttrDef<Alpa_Dialect, name> {
  let mnemonic = attrMnemonic;
  let genVerifyDecl = 1;
}

def Alpa_ShardingSpecParameter : AttrParameter<"::alpa::ShardingSpec", "axes of each dimension"> {
  let cppAccessorType = "const ::alpa::ShardingSpec &";
}

def Alpa_ShardingAttr : Alpa_Attr<"Sharding", "sharding"> {
  let summary = "Which mesh axes split which tensor dimension";
  let description = [{
    One entry a dimension: `R` for a whole dimension, `S` and the digits of the
    mesh axes that split it, major first.

    `#alpa.sharding<[S0, R, S12]>`

    With `unreduced`, the devices along these axes, listed rising, hold terms of a sum
    that is taken later: `#alpa.sharding<[R, S0], unreduced = [1]>`. Only results on
    the way from a gradient's op to the update are held so, and only until
    alpa-defer-sums, which gives each term a place in the tensor's type.

    Constraints:
    - alpa_sharding_c1: an entry is `R`, or `S` followed by axis digits.
    - alpa_sharding_c2: an axis splits at most one dimension, once.
    - alpa_sharding_c3: unreduced axes rise and split no dimension.
  }];
  let parameters = (ins Alpa_ShardingSpecParameter:$spec);
  let hasCustomAssemblyFormat = 1;
}

def Alpa_MeshAttr : Alpa_Attr<"Mesh", "mesh"> {
  let summary = "A logical view of some devices";
  let description = [{
    `#alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>`; devices are in
    row-major order of the shape.

    Constraints:
    - alpa_mesh_c1: one to three axes, each of size at least 1.
    - alpa_mesh_c2: as many devices as the product of the shape.
    - alpa_mesh_c3: devices are distinct and not negative.
  }];
  let parameters = (ins ArrayRefParameter<"int64_t">:$shape, ArrayRefParameter<"int64_t">:$devices);
  let assemblyFormat = "`<` `shape` `=` `[` $shape `]` `,` `devices` `=` `[` $devices `]` `>`";
}

def Alpa_StageAttr : Alpa_Attr<"Stage", "stage"> {
  let summary = "One pipeline stage: its mesh and its layers";
  let description = [{
    `#alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 2]>`
    takes layers 0 and 1. `predicted` (seconds and bytes) and `solver` (status
    and statistics of the intra-op solve) travel on to the plan.

    Constraints:
    - alpa_stage_c1: `0 <= first layer < layer after the last`.
  }];
  let parameters = (ins "::alpa::MeshAttr":$mesh, "int64_t":$firstLayer, "int64_t":$endLayer,
                        OptionalParameter<"::mlir::DictionaryAttr">:$predicted,
                        OptionalParameter<"::mlir::DictionaryAttr">:$solver);
  let assemblyFormat = [{
    `<` `mesh` `=` $mesh `,` `layers` `=` `[` $firstLayer `,` $endLayer `]`
    (`,` `predicted` `=` $predicted^)? (`,` `solver` `=` $solver^)? `>`
  }];
  let builders = [AttrBuilder<(ins "::alpa::MeshAttr":$mesh, "int64_t":$firstLayer,
                                   "int64_t":$endLayer), [{
    return $_get($_ctxt, mesh, firstLayer, endLayer, ::mlir::DictionaryAttr(),
                 ::mlir::DictionaryAttr());
  }]>];
}

#endif // ALPA_DIALECTS_ALPA_ALPAATTRS
