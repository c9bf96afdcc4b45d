//===- CostModel.h - seconds for compute and communication -------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_COSTMODEL_H
#define ALPA_COMPILER_COSTMODEL_COSTMODEL_H

#include "compiler/CostModel/Cluster.h"

namespace alpa::cost {

/// What one device multiplies in a dot or a convolution: so many products of two
/// matrices, [rows, inner] and [inner, columns].
struct Product {
  double count = 1, rows = 1, columns = 1, inner = 1;
  /// Divides the last dimensions of both and of the result; 0 where it does not matter.
  int64_t alignment = 0;
};

/// A product of one device, and an all-gather of what it multiplies or a reduce-scatter of
/// its result, of which it computes rows or columns piece by piece.
struct CollectiveMatmul {
  Collective collective = Collective::AllGather;
  unsigned axis = 0;
  double bytes = 0; // What is gathered, or what is scattered.
  Product product;
  bool cutsRows = true;
  bool keepsWhole = false; // Others read what is gathered.
  double elementBytes = 0;
  llvm::StringRef dtype;
};

/// The only place with cost formulas; docs/cost-model.md derives them. `axis`
/// indexes LogicalMesh::axes; `bytes` is the size on one device of the full
/// buffer: the gathered one, the one to reduce, or for all-to-all and permute the
/// part that a device holds before (and after).
class CostModel {
public:
  explicit CostModel(LogicalMesh mesh) : mesh(std::move(mesh)) {}

  const LogicalMesh &getMesh() const { return mesh; }

  /// Roofline: the slower of arithmetic and memory traffic, on one device. What
  /// was measured for dots and convolutions counts for them alone, and so does the
  /// shape of their product.
  double computeSeconds(double flops, double bytes, llvm::StringRef dtype,
                        const std::optional<Product> &product = {}) const;
  /// The part of their rate that such products reach: less than 1 where rows are no
  /// multiple of 16 bytes.
  double alignedPart(const Product &product, llvm::StringRef dtype) const;
  /// The same as `computeSeconds` for a kernel of its own, which is launched.
  double kernelSeconds(double flops, double bytes, llvm::StringRef dtype,
                       const std::optional<Product> &product = {}) const;
  /// One kernel that computes attention without storing its scores.
  double attentionSeconds(double flops, double bytes, llvm::StringRef dtype) const;
  /// The part of its seconds that a collective costs beside work that hides it.
  double hiddenPart() const { return mesh.device.overlapSlowdown; }
  /// Whether collectives run beside the products that wait for them or for which they wait.
  bool cutsProducts() const { return mesh.device.collectiveMatmul && hiddenPart() < 1; }
  /// By how much the product and its collective are faster in pieces that run side by side;
  /// at most what the collective takes, and 0 where they are not or where the mesh's devices
  /// do not do that.
  double savedByPieces(const CollectiveMatmul &matmul) const;
  /// A device's copy of so many bytes to its host's memory or from there; nothing where the host
  /// does not say what it has.
  double hostSeconds(double bytes) const {
    return mesh.hostMemory ? mesh.hostMemory->link.secondsFor(bytes) : 0;
  }
  double allReduceSeconds(double bytes, unsigned axis) const;
  double allGatherSeconds(double bytes, unsigned axis) const;
  double reduceScatterSeconds(double bytes, unsigned axis) const;
  double allToAllSeconds(double bytes, unsigned axis) const;
  /// Every device of a group sends its part to another one, and gets one.
  double collectivePermuteSeconds(double bytes, unsigned axis) const;

private:
  double productSeconds(const Product &product, double rate) const;
  /// The measured table for groups along an axis, or null, and what to ask it.
  const CostTable *measured(Collective collective, unsigned axis, double &bytes) const;

  LogicalMesh mesh;
};

/// The least that holds two meshes.
enum class Span { Host, Rack, Cluster };

/// What two stages' meshes have between them, point to point. Unless it is known what
/// they share, they share a host if both fit on one, and a rack if both fit into one.
Link transferLink(const Cluster &cluster, const Submesh &from, const Submesh &to,
                  std::optional<Span> span = {});

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_COSTMODEL_H
