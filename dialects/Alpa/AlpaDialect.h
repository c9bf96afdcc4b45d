//===- AlpaDialect.h - meshes, shardings, stages and programs ----*- C++ -*-===//

#ifndef ALPA_DIALECTS_ALPA_ALPADIALECT_H
#define ALPA_DIALECTS_ALPA_ALPADIALECT_H

#include "dialects/Alpa/ShardingSpec.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/RegionKindInterface.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/Hashing.h"

namespace alpa {

llvm::hash_code hash_value(const ShardingSpec &spec);

/// The discardable attributes that passes hand to each other; their meaning is
/// in docs/ir.md.
namespace attr {
inline constexpr llvm::StringLiteral phase = "alpa.phase";
inline constexpr llvm::StringLiteral eqn = "alpa.eqn";
inline constexpr llvm::StringLiteral layer = "alpa.layer";
/// How many groups there are in all, of a grouped product whose rows are in their order. Without
/// it rows are sorted, which gives the same.
inline constexpr llvm::StringLiteral ordered = "ordered";
/// Of @main: layers that are computed again keep what products made (alpa-rematerialize).
inline constexpr llvm::StringLiteral keepsProducts = "alpa.keeps_products";
inline constexpr llvm::StringLiteral rematerialized = "alpa.rematerialized";
/// Of an op of the backward phase: it makes a value of the forward phase again.
inline constexpr llvm::StringLiteral recomputes = "alpa.recomputes";
inline constexpr llvm::StringLiteral movable = "alpa.movable";
inline constexpr llvm::StringLiteral stage = "alpa.stage";
inline constexpr llvm::StringLiteral shardings = "alpa.shardings";
inline constexpr llvm::StringLiteral madeShardings = "alpa.made_shardings";
inline constexpr llvm::StringLiteral useShardings = "alpa.use_shardings";
inline constexpr llvm::StringLiteral captureShardings = "alpa.capture_shardings";
inline constexpr llvm::StringLiteral operandShardings = "alpa.operand_shardings";
inline constexpr llvm::StringLiteral sharding = "alpa.sharding";
inline constexpr llvm::StringLiteral summedAs = "alpa.summed_as";
/// Of fused attention whose tokens are split: devices gather keys and values instead of sending
/// them round.
inline constexpr llvm::StringLiteral gathersKeys = "alpa.gathers_keys";
inline constexpr llvm::StringLiteral kind = "alpa.kind";
/// Of an argument, or of a function's result: "host" if it lies in its host's memory.
inline constexpr llvm::StringLiteral memory = "alpa.memory";
/// Of a forward op: numbers of results that wait for the backward phase in their host's memory.
inline constexpr llvm::StringLiteral offloaded = "alpa.offloaded";
inline constexpr llvm::StringLiteral name = "alpa.name";
inline constexpr llvm::StringLiteral carriedBy = "alpa.carried_by";
inline constexpr llvm::StringLiteral piece = "alpa.piece";
inline constexpr llvm::StringLiteral rows = "alpa.rows";
inline constexpr llvm::StringLiteral reduction = "alpa.reduction";
inline constexpr llvm::StringLiteral value = "alpa.value";
inline constexpr llvm::StringLiteral accumulate = "alpa.accumulate";
inline constexpr llvm::StringLiteral partOf = "alpa.part_of";
inline constexpr llvm::StringLiteral mesh = "alpa.mesh";
inline constexpr llvm::StringLiteral cluster = "alpa.cluster";
inline constexpr llvm::StringLiteral perDevice = "alpa.per_device";
inline constexpr llvm::StringLiteral stages = "alpa.stages";
inline constexpr llvm::StringLiteral perMicroBatch = "alpa.per_micro_batch";
inline constexpr llvm::StringLiteral wholeOf = "alpa.whole_of";
inline constexpr llvm::StringLiteral microBatches = "alpa.micro_batches";
inline constexpr llvm::StringLiteral numMicroBatches = "alpa.num_micro_batches";
inline constexpr llvm::StringLiteral schedule = "alpa.schedule";
inline constexpr llvm::StringLiteral predicted = "alpa.predicted";
inline constexpr llvm::StringLiteral planning = "alpa.planning";
inline constexpr llvm::StringLiteral pin = "alpa.pin";
/// Of a module: sizes of dimensions that were made longer, "25 to 32".
inline constexpr llvm::StringLiteral padded = "alpa.padded";
inline constexpr llvm::StringLiteral pinOpen = "alpa.pin_open";
inline constexpr llvm::StringLiteral pinMesh = "alpa.pin_mesh";
inline constexpr llvm::StringLiteral pinAxes = "alpa.pin_axes";
inline constexpr llvm::StringLiteral pinDropped = "alpa.pin_dropped";
} // namespace attr

} // namespace alpa

#include "dialects/Alpa/AlpaDialect.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Alpa/AlpaAttrs.h.inc"
#define GET_OP_CLASSES
#include "dialects/Alpa/AlpaOps.h.inc"

namespace alpa {

/// Type of the whole tensor of which a function takes or gives parts: in a module
/// that is marked `alpa.per_device` sizes are those of a device's part, split as
/// `attributes` (of the argument or result) say; elsewhere of the whole.
mlir::Type wholeType(mlir::Operation *function, mlir::Type type, mlir::DictionaryAttr attributes);

/// Whether `alpa.phase` of an op is that phase.
bool isOfPhase(mlir::Operation *op, llvm::StringRef phase);
/// `alpa.layer` of an op, if it has one.
std::optional<int64_t> layerOf(mlir::Operation *op);

/// Whether a value is an argument that lives across steps: of a step, or of a function
/// that says nothing of its arguments.
bool isStateArgument(mlir::Value value);

/// Whether a value is an argument that lies in its host's memory between steps.
bool isHostArgument(mlir::Value value);
/// Whether a value is a result that its op's `alpa.offloaded` names.
bool isOffloaded(mlir::Value value);
void setOffloaded(mlir::OpResult result);

/// Whether `spec` fits a value of `type` on a mesh of that shape: one entry for
/// each dimension and no axis beyond the mesh. An empty shape skips the latter.
///
///   spec       type          mesh    fits
///   [S0, R]    tensor<8x8>   [2, 2]  yes
///   [S0]       tensor<8x8>   [2, 2]  no, one entry for two dimensions
///   [S2, R]    tensor<8x8>   [2, 2]  no, the mesh has no axis 2
///   [S01, R]   tensor<6x8>   [2, 2]  no, 4 does not divide 6
mlir::LogicalResult verifySpec(llvm::function_ref<mlir::InFlightDiagnostic()> emitError,
                               const ShardingSpec &spec, mlir::Type type,
                               llvm::ArrayRef<int64_t> meshShape = {});

} // namespace alpa

#endif // ALPA_DIALECTS_ALPA_ALPADIALECT_H
