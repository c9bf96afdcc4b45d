//===- StageStore.cpp - solved stages on disk -----------------------------===//

#include "compiler/Stage/Costs/StageStore.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/BLAKE3.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <dlfcn.h>
#include <unistd.h>

using namespace alpa;
using namespace alpa::stage;
namespace json = llvm::json;

static constexpr llvm::StringRef kSuffix = ".stage";

static std::string hashOf(llvm::ArrayRef<llvm::StringRef> parts) {
  llvm::BLAKE3 hasher;
  for (llvm::StringRef part : parts) {
    hasher.update(std::to_string(part.size()) + ":");
    hasher.update(part);
  }
  return llvm::toHex(hasher.final<16>(), /*LowerCase=*/true);
}

/// A hash of the program or library that this code is a part of; empty if its file
/// cannot be read.
static const std::string &hashOfCompiler() {
  static const std::string hash = []() -> std::string {
    Dl_info info;
    if (!dladdr(reinterpret_cast<const void *>(&hashOfCompiler), &info) || !info.dli_fname)
      return "";
    auto buffer = llvm::MemoryBuffer::getFile(info.dli_fname);
    if (!buffer) // A program that was found by the search path.
      buffer = llvm::MemoryBuffer::getFile("/proc/self/exe");
    return buffer ? hashOf((*buffer)->getBuffer()) : "";
  }();
  return hash;
}

llvm::Expected<std::shared_ptr<StageStore>> StageStore::open(llvm::StringRef folder) {
  if (std::error_code error = llvm::sys::fs::create_directories(folder))
    return llvm::createStringError(error, "cannot make the folder '" + folder +
                                              "' for solved stages: " + error.message());
  if (hashOfCompiler().empty())
    return llvm::createStringError("solved stages cannot be kept: the compiler cannot read its "
                                   "own file, which tells versions apart");
  return std::shared_ptr<StageStore>(new StageStore(folder.str(), hashOfCompiler()));
}

std::string StageStore::nameOf(llvm::StringRef text) const { return hashOf({version, text}); }

std::string StageStore::pathOf(llvm::StringRef name) const {
  llvm::SmallString<128> path(folder);
  llvm::sys::path::append(path, name + kSuffix);
  return std::string(path);
}

//===----------------------------------------------------------------------===//
// Text: the hash of the rest, and a line of JSON.
//===----------------------------------------------------------------------===//

/// JSON has no infinity.
static json::Value fromSeconds(double seconds) {
  return seconds == std::numeric_limits<double>::infinity() ? json::Value(nullptr)
                                                            : json::Value(seconds);
}

static bool toSeconds(const json::Value *value, double &seconds) {
  if (!value)
    return false;
  if (value->getAsNull()) {
    seconds = std::numeric_limits<double>::infinity();
    return true;
  }
  std::optional<double> number = value->getAsNumber();
  seconds = number.value_or(0);
  return number.has_value();
}

static json::Value fromPoint(const sharding::StagePoint &point) {
  json::Array choices;
  for (unsigned choice : point.choices)
    choices.push_back(int64_t(choice));
  return json::Array{std::move(choices),         point.seconds,
                     point.times.forwardSeconds, point.times.backwardSeconds,
                     point.times.updateSeconds,  point.times.barrierSeconds,
                     point.times.prepareSeconds, point.stateBytes,
                     point.activationBytes,      point.steadyBytes,
                     point.steadyTime,           point.updateBytes,
                     point.updateTime,           point.hostBytes,
                     point.hostActivationBytes,  point.hostTime,
                     point.copySeconds,          point.exposedSeconds};
}

static bool toPoint(const json::Value &value, sharding::StagePoint &point) {
  const json::Array *fields = value.getAsArray();
  if (!fields || fields->size() != 18 || !(*fields)[0].getAsArray())
    return false;
  for (const json::Value &choice : *(*fields)[0].getAsArray()) {
    std::optional<int64_t> number = choice.getAsInteger();
    if (!number || *number < 0)
      return false;
    point.choices.push_back(unsigned(*number));
  }
  bool isGood = true;
  unsigned at = 1;
  for (double *seconds :
       {&point.seconds, &point.times.forwardSeconds, &point.times.backwardSeconds,
        &point.times.updateSeconds, &point.times.barrierSeconds, &point.times.prepareSeconds})
    isGood &= toSeconds(&(*fields)[at++], *seconds);
  isGood &= toSeconds(&fields->back(), point.exposedSeconds);
  for (int64_t *bytes : {&point.stateBytes, &point.activationBytes, &point.steadyBytes,
                         &point.steadyTime, &point.updateBytes, &point.updateTime, &point.hostBytes,
                         &point.hostActivationBytes, &point.hostTime}) {
    std::optional<int64_t> number = (*fields)[at++].getAsInteger();
    isGood &= number.has_value();
    *bytes = number.value_or(0);
  }
  return isGood && toSeconds(&(*fields)[at], point.copySeconds);
}

static json::Value fromLayer(uint64_t counting, const LayerFacts &facts) {
  json::Object curves;
  for (const auto &[inFlight, curve] : facts.curves) {
    json::Array known;
    for (const PriceCurve::Known &one : curve->known)
      known.push_back(json::Array{one.secondsPerByte, one.seconds});
    curves[std::to_string(inFlight)] = std::move(known);
  }
  const LayerBounds::Layer &known = facts.known;
  return json::Array{std::to_string(counting), int64_t(known.numImpossible),
                     known.freeSeconds,        known.free.state,
                     known.free.activations,   known.least.state,
                     known.least.activations,  std::move(curves),
                     known.backwardSeconds,    known.weightSeconds,
                     known.waitingBytes,       known.freeInner,
                     known.leastInner};
}

static bool toLayer(const json::Value &value, std::map<uint64_t, LayerFacts> &layers) {
  const json::Array *fields = value.getAsArray();
  uint64_t counting = 0;
  if (!fields || fields->size() != 13 || !(*fields)[0].getAsString() ||
      (*fields)[0].getAsString()->getAsInteger(10, counting) || !(*fields)[7].getAsObject())
    return false;
  LayerFacts &facts = layers[counting];
  std::optional<int64_t> impossible = (*fields)[1].getAsInteger();
  bool isGood = impossible.has_value() && toSeconds(&(*fields)[2], facts.known.freeSeconds);
  facts.known.numImpossible = impossible == 1;
  unsigned at = 3;
  for (int64_t *bytes : {&facts.known.free.state, &facts.known.free.activations,
                         &facts.known.least.state, &facts.known.least.activations}) {
    std::optional<int64_t> number = (*fields)[at++].getAsInteger();
    isGood &= number.has_value();
    *bytes = number.value_or(0);
  }
  isGood &= toSeconds(&(*fields)[8], facts.known.backwardSeconds) &&
            toSeconds(&(*fields)[9], facts.known.weightSeconds);
  at = 10;
  for (int64_t *bytes :
       {&facts.known.waitingBytes, &facts.known.freeInner, &facts.known.leastInner}) {
    std::optional<int64_t> number = (*fields)[at++].getAsInteger();
    isGood &= number.has_value();
    *bytes = number.value_or(0);
  }
  for (const auto &[name, list] : *(*fields)[7].getAsObject()) {
    int64_t inFlight = 0;
    const json::Array *known = list.getAsArray();
    if (llvm::StringRef(name).getAsInteger(10, inFlight) || !known)
      return false;
    auto curve = std::make_shared<PriceCurve>();
    for (const json::Value &item : *known) {
      const json::Array *pair = item.getAsArray();
      PriceCurve::Known &one = curve->known.emplace_back();
      if (!pair || pair->size() != 2 || !toSeconds(&(*pair)[0], one.secondsPerByte) ||
          !toSeconds(&(*pair)[1], one.seconds))
        return false;
    }
    facts.curves[inFlight] = std::move(curve);
  }
  return isGood;
}

static std::string printRun(const StoredRun &run) {
  json::Array points, answers, layers;
  for (const sharding::StagePoint &point : run.points)
    points.push_back(fromPoint(point));
  for (const StoredRun::Answer &answer : run.answers)
    answers.push_back(json::Array{answer.inFlight, int64_t(answer.point),
                                  fromSeconds(answer.boundSeconds), answer.isImproved});
  for (const auto &[counting, facts] : run.layers)
    layers.push_back(fromLayer(counting, facts));
  json::Value whole = json::Object{
      {"free", json::Array{run.freePoint, run.freeBoundSeconds, run.boundSeconds, run.exposure}},
      {"points", std::move(points)},
      {"answers", std::move(answers)},
      {"layers", std::move(layers)}};
  std::string text;
  llvm::raw_string_ostream(text) << whole;
  return text;
}

static std::optional<StoredRun> readRun(llvm::StringRef text) {
  llvm::Expected<json::Value> whole = json::parse(text);
  if (!whole) {
    llvm::consumeError(whole.takeError());
    return std::nullopt;
  }
  const json::Object *fields = whole->getAsObject();
  const json::Array *free = fields ? fields->getArray("free") : nullptr;
  const json::Array *points = fields ? fields->getArray("points") : nullptr;
  const json::Array *answers = fields ? fields->getArray("answers") : nullptr;
  const json::Array *layers = fields ? fields->getArray("layers") : nullptr;
  if (!free || free->size() != 4 || !points || !answers || !layers)
    return std::nullopt;
  StoredRun run;
  auto isPoint = [&](std::optional<int64_t> index) {
    return index && *index >= -1 && *index < int64_t(points->size());
  };
  if (!isPoint((*free)[0].getAsInteger()) || !toSeconds(&(*free)[1], run.freeBoundSeconds) ||
      !toSeconds(&(*free)[2], run.boundSeconds) || !toSeconds(&(*free)[3], run.exposure))
    return std::nullopt;
  run.freePoint = int(*(*free)[0].getAsInteger());
  for (const json::Value &point : *points)
    if (!toPoint(point, run.points.emplace_back()))
      return std::nullopt;
  for (const json::Value &item : *answers) {
    const json::Array *parts = item.getAsArray();
    StoredRun::Answer &answer = run.answers.emplace_back();
    if (!parts || parts->size() != 4 || !(*parts)[0].getAsInteger() ||
        !isPoint((*parts)[1].getAsInteger()) || !toSeconds(&(*parts)[2], answer.boundSeconds) ||
        !(*parts)[3].getAsBoolean())
      return std::nullopt;
    answer.inFlight = *(*parts)[0].getAsInteger();
    answer.point = int(*(*parts)[1].getAsInteger());
    answer.isImproved = *(*parts)[3].getAsBoolean();
  }
  for (const json::Value &layer : *layers)
    if (!toLayer(layer, run.layers))
      return std::nullopt;
  return run;
}

/// What others can have written is not read: a plan is only as good as what it is made from.
static bool isOwn(const std::string &path) {
  llvm::sys::fs::file_status status;
  if (llvm::sys::fs::status(path, status))
    return false;
  auto others = llvm::sys::fs::group_write | llvm::sys::fs::others_write;
  return (status.permissions() & others) == llvm::sys::fs::no_perms &&
         (status.getUser() == getuid() || status.getUser() == 0);
}

std::optional<StoredRun> StageStore::load(llvm::StringRef name) const {
  std::string path = pathOf(name);
  if (!isOwn(path))
    return std::nullopt;
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (!buffer)
    return std::nullopt;
  auto [hash, text] = (*buffer)->getBuffer().split('\n');
  std::optional<StoredRun> run;
  if (hash == hashOf(llvm::StringRef(text)))
    run = readRun(text);
  if (!run)
    (void)llvm::sys::fs::remove(path);
  return run;
}

void StageStore::save(llvm::StringRef name, const StoredRun &run) const {
  std::string text = printRun(run);
  llvm::consumeError(llvm::writeToOutput(pathOf(name), [&](llvm::raw_ostream &os) {
    os << hashOf(llvm::StringRef(text)) << '\n' << text;
    return llvm::Error::success();
  }));
  (void)llvm::sys::fs::setPermissions(pathOf(name),
                                      llvm::sys::fs::owner_read | llvm::sys::fs::owner_write);
}

void StageStore::shrink(uint64_t mostBytes) const {
  struct Entry {
    llvm::sys::TimePoint<> written;
    uint64_t bytes;
    std::string path;
  };
  std::vector<Entry> entries;
  uint64_t sum = 0;
  std::error_code error;
  for (llvm::sys::fs::directory_iterator it(folder, error), end; it != end && !error;
       it.increment(error)) {
    llvm::ErrorOr<llvm::sys::fs::basic_file_status> status = it->status();
    if (!status || !llvm::StringRef(it->path()).ends_with(kSuffix))
      continue;
    entries.push_back({status->getLastModificationTime(), status->getSize(), it->path()});
    sum += status->getSize();
  }
  if (sum <= mostBytes)
    return;
  llvm::sort(entries, [](const Entry &a, const Entry &b) { return a.written < b.written; });
  for (const Entry &entry : entries) {
    if (sum <= mostBytes)
      break;
    sum -= entry.bytes;
    (void)llvm::sys::fs::remove(entry.path);
  }
}
