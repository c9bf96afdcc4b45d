//===- Methods.h - ways to parallelize that are known by name ----*- C++ -*-===//
//
// A method is a part of all plans: the solver fills in what it leaves open, so that
// cost, memory and execution are those of any other plan.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_METHODS_METHODS_H
#define ALPA_COMPILER_SHARDING_METHODS_METHODS_H

#include "compiler/Sharding/Methods/MethodRoles.h"
#include "compiler/Sharding/Problem/IntraOp.h"

namespace alpa {

struct MethodInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral description;
};
/// The registry; "auto", which restricts nothing, comes first.
llvm::ArrayRef<MethodInfo> methodTable();
/// An error that lists the choices for a name that is none of them.
llvm::Error checkMethod(llvm::StringRef name);
/// The same for any table of methods; `kind` is what messages call them.
llvm::Error checkName(llvm::StringRef kind, llvm::ArrayRef<MethodInfo> table, llvm::StringRef name);

/// What a method leaves of the plans of a step on a mesh. `roles` must outlive the
/// filter. Errors: unknown method, or a mesh that the method or the user's
/// shardings cannot use.
llvm::Expected<PlanFilter> makeFilter(llvm::StringRef method, const MethodRoles &roles,
                                      const LogicalMesh &mesh);

/// The GSPMD-propagation heuristic; for makeFilter.
PlanFilter propagatedFilter(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape);
/// What the user has pinned; for makeFilter.
llvm::Expected<PlanFilter> pinnedFilter(const MethodRoles &roles,
                                        llvm::ArrayRef<int64_t> meshShape);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_METHODS_METHODS_H
