// Around by a file: the same shardings as in memory, with memory that binds and without.
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=9000000 output=%t.json" -o /dev/null
// RUN: alpa-solve %t.json --solution %t.choices
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=9000000 solution=%t.choices" -o %t.applied
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=9000000 gap=0" -o %t.solved
// RUN: %python %S/Inputs/same_shardings.py %t.applied %t.solved | FileCheck %s
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4 output=%t.json" -o /dev/null
// RUN: alpa-solve %t.json --solution %t.choices
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4 solution=%t.choices" -o %t.applied
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4" -o %t.solved
// RUN: %python %S/Inputs/same_shardings.py %t.applied %t.solved | FileCheck %s
// CHECK: equal: 3 arguments, 8 ops

// RUN: split-file %s %t.d
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 solution=%t.d/short.json" 2>&1 | FileCheck %s --check-prefix=SHORT
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 solution=%t.d/high.json memory-limit=-1" 2>&1 | FileCheck %s --check-prefix=HIGH
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 solution=%t.d/text.json" 2>&1 | FileCheck %s --check-prefix=TEXT
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=5000000 solution=%t.d/whole.json" 2>&1 | FileCheck %s --check-prefix=LIMIT
// RUN: %python -c "print('[' * 1000000)" > %t.deep
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-apply-sharding-solution="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 solution=%t.deep" 2>&1 | FileCheck %s --check-prefix=DEEP
// DEEP: apply-sharding-solution.mlir.tmp.deep:1:1001: error: brackets are nested more than 1000 deep
// MISSING: error: option 'solution' is missing; give a file of choices
// SHORT: error: the solution has 2 choices, but the problem has 6 nodes
// HIGH: error: the solution takes choice 7 of 'argument {{[0-9]}}', which has 3
// TEXT: error: {{.*}}text.json: the choice of node 1 is not a number of a choice
// LIMIT: error: the solution needs {{[0-9]+}} bytes a device; 5000000 are allowed

//--- short.json
[0, 0]
//--- high.json
[0, 7, 0, 0, 0]
//--- text.json
[0, "x", 0, 0, 0]
//--- whole.json
[0, 0, 0, 0, 0, 0, 0]
