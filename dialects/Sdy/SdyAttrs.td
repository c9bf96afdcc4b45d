//===- SdyAttrs.td - meshes and tensor shardings --------------------------===//

#ifndef ALPA_DIALECTS_SDY_SDYATTRS
#define ALPA_DIALECTS_SDY_SDYATTRS

include "dialects/Sdy/SdyDialect.td"
include "mlir/IR/AttrTypeBase.td"

class Sdy_Attr<string name, string attrMnemonic> : AttrDef<Sdy_Dialect, name> {
  let mnemonic = attrMnemonic;
  let hasCustomAssemblyFormat = 1;
}

def Sdy_MeshAxis : Sdy_Attr<"MeshAxis", "mesh_axis"> {
  let summary = "A named axis of a mesh, `\"x\"=2`";
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$size);
}

def Sdy_Mesh : Sdy_Attr<"Mesh", "mesh"> {
  let summary = "Named axes and, where the order is not the natural one, device ids";
  let description = [{
    `#sdy.mesh<["x"=2, "y"=4]>`, `#sdy.mesh<["x"=2], device_ids=[1, 0]>`. No
    axes and one device id is the mesh of that single device.

    Constraints:
    - sdy_mesh_c1: axis sizes are positive.
    - sdy_mesh_c2: axis names are distinct.
    - sdy_mesh_c3: device ids, if given, are a permutation of all devices, or
      one id when there are no axes.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::sdy::MeshAxisAttr">:$axes,
                        OptionalArrayRefParameter<"int64_t">:$device_ids);
  let genVerifyDecl = 1;
}

def Sdy_AxisRef : Sdy_Attr<"AxisRef", "axis_ref"> {
  let summary = "A whole axis, `\"x\"`, or a part of one, `\"x\":(2)4`";
  let description = [{
    `"x":(p)s` is the part of size `s` of axis `x` that has parts of product `p`
    before it. A size of 0 stands for the whole axis.
  }];
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$pre_size, "int64_t":$size);
}

def Sdy_DimensionSharding : Sdy_Attr<"DimensionSharding", "dimension_sharding"> {
  let summary = "Axes that split one dimension, `{\"x\", ?}p1`";
  let description = [{
    A closed dimension stays as it is; `?` leaves it open for the partitioner.
    `p1` is a priority; -1 stands for none.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::sdy::AxisRefAttr">:$axes, "bool":$is_closed,
                        "int64_t":$priority);
}

def Sdy_TensorSharding : Sdy_Attr<"TensorSharding", "sharding"> {
  let summary = "Sharding of one tensor";
  let description = [{
    `#sdy.sharding<@mesh, [{"x"}, {?} ], replicated={"y"}, unreduced={"z"}>`. The
    mesh is a symbol or `mesh<..>` in place.
  }];
  let parameters = (ins "::mlir::Attribute":$mesh_or_ref,
                        ArrayRefParameter<"::mlir::sdy::DimensionShardingAttr">:$dims,
                        OptionalArrayRefParameter<"::mlir::sdy::AxisRefAttr">:$replicated,
                        OptionalArrayRefParameter<"::mlir::sdy::AxisRefAttr">:$unreduced);
}

def Sdy_TensorShardingPerValue : Sdy_Attr<"TensorShardingPerValue", "sharding_per_value"> {
  let summary = "Shardings of several values, one each";
  let parameters = (ins OptionalArrayRefParameter<"::mlir::sdy::TensorShardingAttr">:$shardings);
}

def Sdy_ManualAxes : Sdy_Attr<"ManualAxes", "manual_axes"> {
  let summary = "Axes over which a computation is written per device";
  let parameters = (ins OptionalArrayRefParameter<"::mlir::StringAttr">:$axes);
}

#endif // ALPA_DIALECTS_SDY_SDYATTRS
