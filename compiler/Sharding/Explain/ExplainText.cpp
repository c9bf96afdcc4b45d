//===- ExplainText.cpp - explanations for people and plans ----------------===//

#include "compiler/Sharding/Explain/Explain.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace mlir;

static std::string formatTime(double picoseconds) {
  double magnitude = picoseconds < 0 ? -picoseconds : picoseconds;
  if (magnitude >= 1e12)
    return llvm::formatv("{0:F3} s", picoseconds * 1e-12);
  if (magnitude >= 1e9)
    return llvm::formatv("{0:F3} ms", picoseconds * 1e-9);
  return llvm::formatv("{0:F3} us", picoseconds * 1e-6);
}

static std::string describeOp(llvm::StringRef name, llvm::StringRef where, llvm::StringRef phase) {
  return (name + (where.empty() ? "" : " " + where) + (phase.empty() ? "" : ", " + phase)).str();
}

void Explanation::print(llvm::raw_ostream &os, llvm::StringRef onlyOp, size_t most) const {
  auto isWanted = [&](llvm::StringRef name, llvm::StringRef where) {
    return onlyOp.empty() || name.contains(onlyOp) || where.contains(onlyOp);
  };
  int64_t total = computePicoseconds + communicationPicoseconds + heldPicoseconds;
  os << llvm::formatv("a step takes {0}: {1} of computation, {2} of communication, {3} as the "
                      "price of held bytes\n",
                      formatTime(total), formatTime(computePicoseconds),
                      formatTime(communicationPicoseconds), formatTime(heldPicoseconds));
  os << llvm::formatv("the problem's objective is {0}; {1} no choice can change\n",
                      formatTime(static_cast<double>(objective)), formatTime(fixedPicoseconds));
  os << "\ncommunication\n";
  std::vector<ExplainedTraffic> sorted = traffic;
  llvm::sort(sorted, [](const ExplainedTraffic &a, const ExplainedTraffic &b) {
    return std::make_tuple(-a.picoseconds, a.collective, a.axis) <
           std::make_tuple(-b.picoseconds, b.collective, b.axis);
  });
  for (const ExplainedTraffic &row : sorted)
    os << llvm::formatv("  {0,-20} {1,-8} {2,6} times {3,12:F3} MB {4,12}\n",
                        collectiveNames()[static_cast<size_t>(row.collective)],
                        row.axis < 0 ? "any axis" : llvm::formatv("axis {0}", row.axis).str(),
                        row.count, row.bytes * 1e-6, formatTime(row.picoseconds));

  std::vector<const ExplainedOp *> dear;
  for (const ExplainedOp &row : ops)
    if (isWanted(row.name, row.where) && row.computePicoseconds + row.communicationPicoseconds > 0)
      dear.push_back(&row);
  auto costOf = [](const ExplainedOp *row) {
    return row->computePicoseconds + row->communicationPicoseconds;
  };
  llvm::sort(dear, [&](const ExplainedOp *a, const ExplainedOp *b) {
    return std::make_pair(-costOf(a), a) < std::make_pair(-costOf(b), b);
  });
  os << llvm::formatv("\nops by cost, {0} of {1}\n", std::min(most, dear.size()), dear.size());
  for (const ExplainedOp *row : llvm::ArrayRef(dear).take_front(most))
    os << llvm::formatv("  {0,12} computing {1,12} communicating  {2}\n      {3}\n",
                        formatTime(row->computePicoseconds),
                        formatTime(row->communicationPicoseconds),
                        describeOp(row->name, row->where, row->phase), row->specs);

  std::vector<const ExplainedDecision *> shown;
  for (const ExplainedDecision &row : decisions)
    if (isWanted(row.name, row.where))
      shown.push_back(&row);
  llvm::sort(shown, [](const ExplainedDecision *a, const ExplainedDecision *b) {
    return std::make_pair(-a->picoseconds, a) < std::make_pair(-b->picoseconds, b);
  });
  os << llvm::formatv("\ndecisions by cost, {0} of {1}\n", std::min(most, shown.size()),
                      shown.size());
  for (const ExplainedDecision *row : llvm::ArrayRef(shown).take_front(most)) {
    os << llvm::formatv("  {0,12}  {1}: one of {2}\n      chosen    {3}\n",
                        formatTime(row->picoseconds), describeOp(row->name, row->where, row->phase),
                        row->choices, row->chosen);
    if (!row->runnerUp.empty())
      os << llvm::formatv("      runner-up {0}: the step takes {1} more\n", row->runnerUp,
                          formatTime(static_cast<double>(row->runnerUpObjective - objective)));
  }
}

DictionaryAttr Explanation::toAttribute(MLIRContext *context) const {
  Builder builder(context);
  auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
  auto seconds = [&](double picoseconds) { return builder.getF64FloatAttr(picoseconds * 1e-12); };
  auto text = [&](StringRef value) { return builder.getStringAttr(value); };
  auto number = [&](int64_t value) { return builder.getI64IntegerAttr(value); };
  SmallVector<Attribute> trafficRows, opRows, decisionRows;
  for (const ExplainedTraffic &row : traffic) {
    SmallVector<NamedAttribute> fields = {
        named("collective", text(collectiveNames()[static_cast<size_t>(row.collective)])),
        named("count", number(row.count)), named("bytes", builder.getF64FloatAttr(row.bytes)),
        named("seconds", seconds(row.picoseconds))};
    if (row.axis >= 0)
      fields.push_back(named("axis", number(row.axis)));
    trafficRows.push_back(builder.getDictionaryAttr(fields));
  }
  for (const ExplainedOp &row : ops) {
    if (row.computePicoseconds + row.communicationPicoseconds == 0)
      continue;
    SmallVector<NamedAttribute> fields = {
        named("op", text(row.name)),
        named("where", text(row.where)),
        named("phase", text(row.phase)),
        named("specs", text(row.specs)),
        named("compute_seconds", seconds(row.computePicoseconds)),
        named("communication_seconds", seconds(row.communicationPicoseconds))};
    if (row.layer)
      fields.push_back(named("layer", number(*row.layer)));
    if (row.decision >= 0)
      fields.push_back(named("decision", number(row.decision)));
    opRows.push_back(builder.getDictionaryAttr(fields));
  }
  for (const ExplainedDecision &row : decisions) {
    SmallVector<NamedAttribute> fields = {
        named("op", text(row.name)),       named("where", text(row.where)),
        named("phase", text(row.phase)),   named("choices", number(row.choices)),
        named("chosen", text(row.chosen)), named("seconds", seconds(row.picoseconds)),
        named("types", text(row.types))};
    if (row.layer)
      fields.push_back(named("layer", number(*row.layer)));
    if (llvm::any_of(row.reads, [](const std::string &name) { return !name.empty(); })) {
      SmallVector<StringRef> reads(row.reads.begin(), row.reads.end());
      fields.push_back(named("reads", builder.getStrArrayAttr(reads)));
    }
    if (!row.runnerUp.empty()) {
      fields.push_back(named("runner_up", text(row.runnerUp)));
      fields.push_back(named("runner_up_more_seconds",
                             seconds(static_cast<double>(row.runnerUpObjective - objective))));
    }
    decisionRows.push_back(builder.getDictionaryAttr(fields));
  }
  return builder.getDictionaryAttr(
      {named("compute_seconds", seconds(computePicoseconds)),
       named("communication_seconds", seconds(communicationPicoseconds)),
       named("held_bytes_seconds", seconds(heldPicoseconds)),
       named("objective_seconds", seconds(static_cast<double>(objective))),
       named("fixed_seconds", seconds(fixedPicoseconds)),
       named("communication", builder.getArrayAttr(trafficRows)),
       named("ops", builder.getArrayAttr(opRows)),
       named("decisions", builder.getArrayAttr(decisionRows))});
}
