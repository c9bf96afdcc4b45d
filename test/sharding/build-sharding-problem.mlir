// RUN: alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=9000000 output=-" -o /dev/null | FileCheck %s
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=-1 output=-" -o /dev/null | FileCheck %s --check-prefix=FREE
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" 2>&1 | FileCheck %s --check-prefix=OUTPUT
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 output=/nowhere/p.json" 2>&1 | FileCheck %s --check-prefix=NOWHERE

// Nodes: batch and weight, the two dots, the gradient as the update reads it, momentum. The weight takes 2 MiB or a
// quarter, and so does the momentum. At the one moment that can bind, the backward
// dot, the batch is there, what tanh made, and its square; the gradient counts
// once, as the sum over micro-batches, to which the product adds in place, whole also
// where the sum over devices waits. The last node is the sum of the losses.
// CHECK: "intervals":{{\[\[}}0,1],[0,1],[0,1],[0,1],[],[0,1],[0,1]]
// CHECK: "usages":{{\[\[}}8388608,2097152,2097152],[2097152,524288,524288],[2097152,2097152,8388608,2097152,2097152],[524288,524288,2097152,524288,524288],[],[2097152,524288,524288],[4]]
// CHECK: "usage_limit":9000000

// FREE-NOT: usage_limit":{{[0-9]}}
// OUTPUT: error: option 'output' is missing; give a file for the problem
// NOWHERE: error: cannot open output file '/nowhere/p.json'
