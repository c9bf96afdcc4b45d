//===- AttributeJson.h - MLIR attributes and types as JSON ------*- C++ -*-===//

#ifndef ALPA_COMPILER_EXPORT_ATTRIBUTEJSON_H
#define ALPA_COMPILER_EXPORT_ATTRIBUTEJSON_H

#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/Support/JSON.h"

namespace alpa::exporter {

/// Names of mesh axes, in plans and in Shardy annotations.
inline constexpr llvm::StringLiteral axisNames[] = {"x", "y", "z"};

/// NumPy's name of an element type; empty if it has none.
std::string numpyName(mlir::Type element);
/// Dictionaries, arrays, numbers, strings and booleans; anything else as text.
void writeJson(llvm::json::OStream &json, mlir::Attribute attribute);
/// The cluster, given as text of JSON or as a dictionary.
void writeCluster(llvm::json::OStream &json, mlir::ModuleOp module);
llvm::json::Array shapeJson(llvm::ArrayRef<int64_t> shape);
/// One list of mesh axis names for each dimension.
llvm::json::Array specJson(ShardingAttr sharding, MeshAttr mesh);
/// A tensor as a mesh holds it, "float32[8,64][x*y,R]": dtype, shape, and the axes
/// that split each dimension.
std::string tensorText(mlir::Type type, ShardingAttr sharding, MeshAttr mesh,
                       bool isOnHost = false);
/// The module without anything that only this compiler knows, as text.
std::string plainText(mlir::ModuleOp stage);

} // namespace alpa::exporter

#endif // ALPA_COMPILER_EXPORT_ATTRIBUTEJSON_H
