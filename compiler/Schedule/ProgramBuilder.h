//===- ProgramBuilder.h - the program of a mesh from its steps ---*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PROGRAMBUILDER_H
#define ALPA_COMPILER_SCHEDULE_PROGRAMBUILDER_H

#include "compiler/Schedule/Schedules.h"
#include "compiler/Schedule/SlicedModule.h"

#include "mlir/IR/Builders.h"

namespace alpa {

/// In place of a micro-batch: one buffer for the step.
constexpr int64_t kOnce = -1;

/// The numbers of transfers, one for each value, micro-batch and receiving mesh. They
/// are given out in the order in which they are asked for.
class TransferTags {
public:
  explicit TransferTags(int64_t numMicroBatches) : numMicroBatches(numMicroBatches) {}
  /// Those of a value to a mesh, by micro-batch plus one; -1 where there is none yet.
  std::vector<int64_t> &of(int64_t id, int64_t mesh);
  int64_t at(std::vector<int64_t> &tags, int64_t microBatch);

private:
  int64_t numMicroBatches, next = 0;
  llvm::DenseMap<std::pair<int64_t, int64_t>, std::unique_ptr<std::vector<int64_t>>> tables;
};

/// Writes one mesh's program. What a step has many of is looked up by number: values
/// of this mesh are numbered when they are met first.
class ProgramBuilder {
public:
  ProgramBuilder(const SlicedModule &sliced, int64_t mesh, TransferTags &tags);

  /// Fails, saying so, if a step needs what a later one makes.
  mlir::FailureOr<ProgramOp> build(llvm::ArrayRef<ScheduleStep> steps);

  int64_t numInstructions = 0, numTransfers = 0;

private:
  /// A value on this mesh, once for each way in which its stages hold it.
  struct Held {
    mlir::Value buffer;
    ShardingAttr sharding;
  };
  using Buffers = llvm::SmallVector<Held, 1>;

  /// Tags of a value to one mesh.
  struct Route {
    int64_t to;
    std::vector<int64_t> *tags;
  };

  struct LocalValue {
    int64_t id;
    const ValueFlow *flow;
    bool isBatch, isState;
    std::vector<Buffers> buffers;               // By micro-batch plus one.
    int64_t finished = 0;                       // Micro-batches that are in the sum.
    std::vector<int64_t> *arriving = nullptr;   // Tags, if another mesh makes it.
    llvm::SmallVector<Route, 1> perMicroBatch;  // To meshes that need it for runs,
    llvm::SmallVector<Route, 1> once;           // and once, for the barrier or the update.
    llvm::SmallVector<int64_t, 1> concatenated; // Results of the step made of its parts.
  };

  struct Function {
    const StageFunction *info;
    llvm::SmallVector<int64_t> inputs, outputs; // Local values.
    llvm::SmallVector<mlir::Type> types;        // Of the outputs.
  };

  int64_t localOf(int64_t id);
  Function &functionOf(const StageFunction &info);
  void sendState();
  void runStep(const ScheduleStep &step);
  void runMicroBatch(const StageFunction &info, int64_t microBatch);
  void runUpdates();
  void runBarriers();
  void runOnce(const StageFunction &info);
  void meet(const StageSum &sum);
  mlir::ResultRange run(const Function &function, int64_t microBatch);
  void finishMicroBatchValue(const Port &port, LocalValue &value, mlir::Value buffer,
                             int64_t microBatch);
  void giveOutputs();
  void giveBatchOutput(int64_t arg, int64_t result);
  void freeDead(ProgramOp program);

  /// The buffer of a value that a function needs.
  mlir::Value need(const Port &port, int64_t local, int64_t microBatch);
  mlir::Value make(const Port &port, LocalValue &value, int64_t microBatch);
  mlir::Value input(const Port &port, int64_t microBatch);
  void send(mlir::Value buffer, llvm::ArrayRef<Route> routes, int64_t microBatch);
  void sendOnce(mlir::Value buffer, const LocalValue &value);
  mlir::IntegerAttr number(int64_t value) { return builder.getI64IntegerAttr(value); }
  mlir::IntegerAttr microBatchAttr(int64_t microBatch) {
    return microBatch == kOnce ? mlir::IntegerAttr() : microBatchAttrs[microBatch];
  }

  const SlicedModule &sliced;
  int64_t mesh;
  TransferTags &tags;
  mlir::OpBuilder builder;
  mlir::Location loc;
  bool isWrong = false;
  llvm::SmallVector<mlir::IntegerAttr> microBatchAttrs;
  llvm::DenseMap<int64_t, int64_t> locals;         // By value id.
  std::vector<std::unique_ptr<LocalValue>> values; // Local values.
  llvm::DenseMap<const StageFunction *, std::unique_ptr<Function>> functions;
};

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_PROGRAMBUILDER_H
