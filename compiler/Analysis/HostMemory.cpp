//===- HostMemory.cpp - what lies in the host's memory --------------------===//

#include "compiler/Analysis/HostMemory.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/MapVector.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;

static int64_t numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() ? type.getNumElements() : 1;
}

static void forEachRead(Operation *op, llvm::function_ref<void(Value)> callback) {
  op->walk([&](Operation *inner) { llvm::for_each(inner->getOperands(), callback); });
}

namespace {

/// Of which host arguments a value is made: at all, and element by element.
struct Sources {
  llvm::BitVector all, byElement;
};

} // namespace

std::vector<HostPiece> analysis::findHostPieces(llvm::ArrayRef<Operation *> ops,
                                                llvm::function_ref<bool(Value)> isHostArgument,
                                                llvm::ArrayRef<Value> hostResults) {
  llvm::MapVector<Value, std::pair<unsigned, unsigned>> arguments; // First and last reader.
  for (auto [place, op] : llvm::enumerate(ops))
    forEachRead(op, [&, place = unsigned(place)](Value read) {
      if (isHostArgument(read))
        arguments.insert({read, {place, place}}).first->second.second = place;
    });
  size_t count = arguments.size();
  if (count == 0)
    return {};

  llvm::IntEqClasses together(count);
  auto join = [&](const llvm::BitVector &set) {
    int first = set.find_first();
    for (int other = set.find_next(first < 0 ? 0 : first); first >= 0 && other >= 0;
         other = set.find_next(other))
      together.join(first, other);
  };
  llvm::DenseMap<Value, Sources> sources;
  for (auto [index, entry] : llvm::enumerate(arguments)) {
    Sources &mine = sources[entry.first];
    mine.all.resize(count);
    mine.all.set(index);
    mine.byElement = mine.all;
  }
  llvm::DenseMap<Value, unsigned> madeAt;
  for (unsigned place = 0; place < ops.size(); ++place) {
    Operation *op = ops[place];
    Sources mine{llvm::BitVector(count), llvm::BitVector(count)};
    for (Value result : op->getResults())
      madeAt[result] = place;
    forEachRead(op, [&](Value read) {
      auto it = sources.find(read);
      if (it == sources.end())
        return;
      mine.all |= it->second.all;
      if (op->getNumResults() > 0 && numElements(read) == numElements(op->getResult(0)))
        mine.byElement |= it->second.byElement;
    });
    if (mine.all.none())
      continue;
    join(mine.byElement);
    for (Value result : op->getResults())
      sources[result] = mine;
  }
  // What waits for a piece must not be what the piece waits for.
  for (Value result : hostResults)
    if (auto it = sources.find(result); it != sources.end())
      join(it->second.all);
  together.compress();

  llvm::SmallVector<int> pieceOf(together.getNumClasses(), -1);
  std::vector<HostPiece> pieces;
  for (auto [index, entry] : llvm::enumerate(arguments)) {
    auto [argument, readers] = entry;
    int &piece = pieceOf[together[index]];
    if (piece < 0) {
      piece = static_cast<int>(pieces.size());
      pieces.push_back({{}, {}, readers.first, readers.second});
    }
    pieces[piece].arguments.push_back(argument);
    pieces[piece].last = std::max(pieces[piece].last, readers.second);
  }
  for (Value result : hostResults) {
    auto it = sources.find(result);
    if (it == sources.end() || isHostArgument(result))
      continue;
    HostPiece &piece = pieces[pieceOf[together[it->second.all.find_first()]]];
    piece.results.push_back(result);
    piece.last = std::max(piece.last, madeAt.lookup(result));
  }
  return pieces;
}

bool analysis::isHostActivation(Value value, llvm::function_ref<bool(Operation *)> isInStage) {
  if (!isOffloaded(value))
    return false;
  Operation *source = value.getDefiningOp();
  bool isKept = false;
  auto isOfMicroBatch = [&](Operation *user) {
    user = source->getBlock()->findAncestorOpInBlock(*user);
    bool isBackward = user && isOfPhase(user, "backward");
    isKept |= isBackward;
    return user && isInStage(user) && (isBackward || isOfPhase(user, "forward"));
  };
  return isOfPhase(source, "forward") && isInStage(source) &&
         llvm::all_of(value.getUsers(), isOfMicroBatch) && isKept;
}

Operation *analysis::firstBackwardReader(Value activation) {
  Operation *first = nullptr;
  for (Operation *user : activation.getUsers()) {
    user = activation.getParentBlock()->findAncestorOpInBlock(*user);
    if (user && isOfPhase(user, "backward") && (!first || user->isBeforeInBlock(first)))
      first = user;
  }
  return first;
}

std::vector<HostActivations>
analysis::findHostActivations(llvm::ArrayRef<Operation *> ops,
                              llvm::function_ref<int64_t(Value)> pieceOf) {
  std::vector<HostActivations> pieces;
  llvm::DenseMap<int64_t, unsigned> indexOf;
  llvm::DenseSet<Value> depending; // On any piece.
  llvm::DenseMap<Value, unsigned> lastRead;
  for (auto [place, op] : llvm::enumerate(ops)) {
    bool depends = false;
    forEachRead(op, [&, place = unsigned(place)](Value read) {
      bool isNew = lastRead.try_emplace(read).second;
      lastRead[read] = place;
      if (int64_t number = isNew ? pieceOf(read) : -1; number >= 0) {
        auto [it, opens] = indexOf.try_emplace(number, pieces.size());
        if (opens)
          pieces.push_back({{}, place, {}});
        pieces[it->second].values.push_back(read);
        depending.insert(read);
      }
      depends |= depending.contains(read);
    });
    if (depends)
      depending.insert(op->result_begin(), op->result_end());
  }
  for (unsigned index = 0; index + 1 < pieces.size(); ++index)
    for (unsigned place = pieces[index].first; place < pieces[index + 1].first; ++place)
      for (Value result : ops[place]->getResults()) {
        auto read = lastRead.find(result);
        bool leaves = read == lastRead.end() || read->second >= pieces[index + 1].first;
        if (leaves && !result.use_empty() && depending.contains(result))
          pieces[index].results.push_back(result);
      }
  return pieces;
}
