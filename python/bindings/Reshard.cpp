//===- Reshard.cpp - plans of transfers as Python objects ------------------===//

#include "Bindings.h"
#include "compiler/Reshard/TransferStrategies.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace alpa;

namespace {

using Numbers = std::vector<int64_t>;
using Mesh = std::pair<Numbers, Numbers>; // Shape and devices.
using Spec = std::vector<std::vector<unsigned>>;

reshard::MeshTensor tensorOn(const Mesh &mesh, const Spec &spec) {
  reshard::MeshTensor tensor;
  tensor.meshShape.assign(mesh.first.begin(), mesh.first.end());
  tensor.devices.assign(mesh.second.begin(), mesh.second.end());
  for (const auto &axes : spec)
    tensor.spec.dims.emplace_back(axes.begin(), axes.end());
  return tensor;
}

/// Plans transfers on one cluster.
class TransferPlanner {
public:
  explicit TransferPlanner(const std::string &cluster) : network(describe(cluster)) {}

  nb::dict plan(int64_t elementBytes, const Numbers &shape, const Mesh &sourceMesh,
                const Spec &source, const Mesh &targetMesh, const Spec &target,
                const std::string &strategy) const {
    reshard::TransferProblem problem;
    problem.elementBytes = elementBytes;
    problem.shape.assign(shape.begin(), shape.end());
    problem.source = tensorOn(sourceMesh, source);
    problem.target = tensorOn(targetMesh, target);
    llvm::Expected<reshard::TransferPlan> plan = [&] {
      nb::gil_scoped_release release;
      return reshard::planTransfer(problem, network, strategy);
    }();
    if (!plan)
      throw CompilerError(plan.takeError(), ErrorCode::Pass);
    nb::dict result;
    result["strategy"] = plan->strategy;
    result["seconds"] = plan->seconds;
    result["slow_bytes"] = plan->slowBytes;
    result["steps"] = plan->lines();
    return result;
  }

private:
  static cost::Network describe(const std::string &cluster) {
    llvm::StringRef given(cluster);
    return cost::Network(take(given.contains('{') || given.contains('\n')
                                  ? cost::parseCluster(cluster, "<cluster>")
                                  : cost::loadCluster(cluster),
                              ErrorCode::ClusterFile));
  }

  cost::Network network;
};

} // namespace

void bindReshard(nb::module_ &m) {
  nb::class_<TransferPlanner>(m, "TransferPlanner")
      .def(nb::init<const std::string &>(), nb::arg("cluster"))
      .def("plan", &TransferPlanner::plan, nb::arg("element_bytes"), nb::arg("shape"),
           nb::arg("source_mesh"), nb::arg("source_spec"), nb::arg("target_mesh"),
           nb::arg("target_spec"), nb::arg("strategy") = "auto");
  m.def("transfer_strategies", [] {
    std::vector<std::pair<std::string, std::string>> strategies;
    for (const reshard::StrategyInfo &info : reshard::transferStrategies())
      strategies.emplace_back(info.name.str(), info.summary.str());
    return strategies;
  });
}
