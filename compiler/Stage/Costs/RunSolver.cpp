//===- RunSolver.cpp - one run of layers on one mesh ----------------------===//

#include "compiler/Stage/Costs/RunSolver.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace alpa;
using namespace alpa::stage;
using sharding::StagePoint;
using sharding::StageProblem;
using sharding::StageUsage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

double PriceCurve::at(double secondsPerByte) const {
  auto above = llvm::upper_bound(known, secondsPerByte, [](double price, const Known &entry) {
    return price < entry.secondsPerByte;
  });
  if (above == known.begin())
    return 0;
  const Known &left = *std::prev(above);
  if (above == known.end())
    return left.seconds;
  double part =
      (secondsPerByte - left.secondsPerByte) / (above->secondsPerByte - left.secondsPerByte);
  return left.seconds + part * (above->seconds - left.seconds);
}

/// So high that seconds hardly count beside bytes; sums of costs stay exact.
static double highestPrice(const StagePoint &free, double bytes) {
  constexpr double kBytesOverSeconds = 1e3;
  return kBytesOverSeconds * std::max(free.seconds, 1e-9) / std::max(bytes, 1.0);
}

namespace {

class CurveTracer {
public:
  CurveTracer(const StageProblem &problem, const StageUsage &usage, double tolerance,
              unsigned mostSolves, const StageProblem::Effort &effort,
              std::vector<std::shared_ptr<StagePoint>> &points)
      : problem(problem), usage(usage), tolerance(tolerance), solvesLeft(mostSolves),
        effort(effort), points(points) {}

  llvm::Expected<PriceCurve> run(const StageProblem::Priced &free) {
    curve.known.push_back({0, free.boundSeconds});
    double bytes = usage.bytes(free.point->choices);
    End left{0, problem.countedSeconds(*free.point, effort.exposure), bytes};
    llvm::Expected<End> right = solve(highestPrice(*free.point, bytes));
    if (!right)
      return right.takeError();
    if (llvm::Error error = refine(left, *right))
      return error;
    llvm::sort(curve.known,
               [](const auto &a, const auto &b) { return a.secondsPerByte < b.secondsPerByte; });
    return std::move(curve);
  }

private:
  /// The answer at a price.
  struct End {
    double price, seconds, bytes;
  };

  llvm::Expected<End> solve(double price) {
    --solvesLeft;
    llvm::Expected<StageProblem::Priced> priced = problem.solve(&usage, price, effort);
    if (!priced)
      return priced.takeError();
    if (!priced->point)
      return End{price, kInfinity, 0};
    curve.known.push_back({price, priced->boundSeconds});
    points.push_back(priced->point);
    return End{price, problem.countedSeconds(*priced->point, effort.exposure),
               double(usage.bytes(priced->point->choices))};
  }

  /// Between two answers lies at most what is gained at the price at which both
  /// cost the same.
  llvm::Error refine(End left, End right) {
    if (solvesLeft == 0 || right.seconds == kInfinity || right.bytes >= left.bytes * (1 - 1e-3) ||
        right.seconds <= left.seconds)
      return llvm::Error::success();
    double price = (right.seconds - left.seconds) / (left.bytes - right.bytes);
    if (price <= left.price || price >= right.price)
      return llvm::Error::success();
    llvm::Expected<End> middle = solve(price);
    if (!middle)
      return middle.takeError();
    if (middle->seconds == kInfinity)
      return llvm::Error::success();
    double both = left.seconds + price * left.bytes;
    if (middle->seconds + price * middle->bytes >= both * (1 - tolerance))
      return llvm::Error::success();
    if (llvm::Error error = refine(left, *middle))
      return error;
    return refine(*middle, right);
  }

  const StageProblem &problem;
  const StageUsage &usage;
  double tolerance;
  unsigned solvesLeft;
  StageProblem::Effort effort;
  std::vector<std::shared_ptr<StagePoint>> &points;
  PriceCurve curve;
};

/// Moves the price on the bytes of the fullest moment.
class LimitFinder {
public:
  LimitFinder(const StageProblem &problem, int64_t inFlight, int64_t limitBytes, double likelyPrice,
              double tolerance, const StageProblem::Effort &effort,
              std::vector<std::shared_ptr<StagePoint>> &points)
      : problem(problem), inFlight(inFlight), limit(limitBytes), likelyPrice(likelyPrice),
        tolerance(tolerance), effort(effort), points(points) {}

  llvm::Expected<RunAnswer> run(const StageProblem::Priced &free) {
    answer.boundSeconds = free.boundSeconds;
    for (const std::shared_ptr<StagePoint> &point : points)
      offer(point);
    if (isEnough())
      return answer;
    // Which moment is the fullest may change with the plan.
    constexpr unsigned kMostMoments = 3;
    llvm::SmallVector<int64_t> moments{free.point->peakTime(inFlight)};
    for (unsigned index = 0; index < moments.size(); ++index) {
      usage = problem.usageAt(moments[index], inFlight);
      std::optional<int64_t> other;
      if (llvm::Error error = search(free, other))
        return error;
      if (isEnough() || answer.boundSeconds == kInfinity)
        break;
      if (other && moments.size() < kMostMoments && !llvm::is_contained(moments, *other))
        moments.push_back(*other);
    }
    return answer;
  }

private:
  bool isEnough() const {
    return answer.point && answer.point->seconds * (1 - tolerance) <= answer.boundSeconds;
  }
  bool fits(const StagePoint &point) const { return point.peakBytes(inFlight) <= limit; }
  /// What prices trade for bytes: a solve does not know what is not hidden beyond the exposure.
  double secondsOf(const StagePoint &point) {
    auto [it, isNew] = counted.try_emplace(&point);
    if (isNew)
      it->second = problem.countedSeconds(point, effort.exposure);
    return it->second;
  }

  void offer(std::shared_ptr<StagePoint> point) {
    if (point && fits(*point) && (!answer.point || point->seconds < answer.point->seconds))
      answer.point = std::move(point);
  }

  llvm::Expected<std::shared_ptr<StagePoint>> solve(double price) {
    llvm::Expected<StageProblem::Priced> priced = problem.solve(&usage, price, effort);
    if (!priced)
      return priced.takeError();
    answer.boundSeconds =
        std::max(answer.boundSeconds, priced->boundSeconds - price * double(limit));
    if (priced->point) {
      points.push_back(priced->point);
      offer(priced->point);
    }
    return priced->point;
  }

  /// `other` is a moment at which a plan was too large that fits at this one.
  llvm::Error search(const StageProblem::Priced &free, std::optional<int64_t> &other) {
    auto bytesOf = [&](const StagePoint &point) { return double(usage.bytes(point.choices)); };
    const StagePoint *over = free.point.get(), *under = nullptr;
    if (bytesOf(*over) <= double(limit))
      return llvm::Error::success();
    auto take = [&](const StagePoint &point) {
      if (bytesOf(point) > double(limit) || (under && secondsOf(point) >= secondsOf(*under)))
        return;
      under = &point;
      if (!fits(point))
        other = point.peakTime(inFlight);
    };
    for (const std::shared_ptr<StagePoint> &point : points)
      take(*point);
    if (likelyPrice > 0) {
      llvm::Expected<std::shared_ptr<StagePoint>> likely = solve(likelyPrice);
      if (!likely)
        return likely.takeError();
      if (*likely && bytesOf(**likely) > double(limit) && bytesOf(**likely) < bytesOf(*over))
        over = likely->get();
      else if (*likely)
        take(**likely);
    }
    if (!under) {
      llvm::Expected<std::shared_ptr<StagePoint>> least =
          solve(highestPrice(*free.point, bytesOf(*free.point)));
      if (!least)
        return least.takeError();
      if (!*least)
        return llvm::Error::success();
      answer.least = *least;
      take(**least);
      if (!under) {
        answer.boundSeconds = kInfinity;
        return llvm::Error::success();
      }
    }
    constexpr unsigned kMostPrices = 12;
    for (unsigned i = 0; i < kMostPrices && !isEnough(); ++i) {
      double saved = bytesOf(*over) - bytesOf(*under);
      double more = secondsOf(*under) - secondsOf(*over);
      if (saved <= 0 || more <= 0)
        break;
      double price = more / saved;
      llvm::Expected<std::shared_ptr<StagePoint>> point = solve(price);
      if (!point)
        return point.takeError();
      if (!*point)
        break;
      double both = secondsOf(*over) + price * bytesOf(*over);
      bool isNew = secondsOf(**point) + price * bytesOf(**point) < both * (1 - 1e-7);
      if (!isNew)
        break;
      if (bytesOf(**point) > double(limit)) {
        over = point->get();
      } else {
        under = point->get();
        if (!fits(*under))
          other = under->peakTime(inFlight);
      }
    }
    if (!isEnough())
      if (std::shared_ptr<StagePoint> mixed = problem.mix(*over, *under, inFlight, limit)) {
        points.push_back(mixed);
        offer(std::move(mixed));
      }
    return llvm::Error::success();
  }

  const StageProblem &problem;
  int64_t inFlight, limit;
  double likelyPrice, tolerance;
  StageProblem::Effort effort;
  std::vector<std::shared_ptr<StagePoint>> &points;
  llvm::DenseMap<const StagePoint *, double> counted; // All of them stay in `points`.
  StageUsage usage;
  RunAnswer answer;
};

} // namespace

llvm::Expected<PriceCurve>
stage::tracePriceCurve(const StageProblem &problem, const StageUsage &usage,
                       const StageProblem::Priced &free, double tolerance, unsigned mostSolves,
                       const StageProblem::Effort &effort,
                       std::vector<std::shared_ptr<StagePoint>> &points) {
  return CurveTracer(problem, usage, tolerance, mostSolves, effort, points).run(free);
}

llvm::Expected<RunAnswer> stage::solveWithin(const StageProblem &problem,
                                             const StageProblem::Priced &free, int64_t inFlight,
                                             int64_t limitBytes, double likelyPrice,
                                             double tolerance, const StageProblem::Effort &effort,
                                             std::vector<std::shared_ptr<StagePoint>> &points) {
  return LimitFinder(problem, inFlight, limitBytes, likelyPrice, tolerance, effort, points)
      .run(free);
}
