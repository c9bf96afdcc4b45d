// Every schedule on the searched, sliced and split stages of a training step; the same runs in another order.
// RUN: alpa-opt %S/../stage/search-stages.mlir --alpa-search-stages="cluster=cpu-test num-micro-batches=4 submeshes=1x1,1x1" --alpa-gather-sums --alpa-slice-stages --alpa-split-backward=always=true --alpa-insert-reshards --alpa-optimize-collectives --alpa-verify-sharding -o %t.mlir
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=1f1b --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=1f1b-overlap --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=gpipe --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=interleaved-1f1b --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=zb-h1 --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule=schedule=zb-auto --alpa-verify-program=channel-capacity=1 | FileCheck %s
// RUN: alpa-opt %t.mlir --alpa-build-schedule="steps=F0.0,F0.1,B0.0,F0.2,B0.1,F0.3,B0.2,I0.3,W0.3;F1.0,I1.0,F1.1,I1.1,W1.0,W1.1,F1.2,B1.2,F1.3,B1.3" --alpa-verify-program | FileCheck %s

// RUN: sed 's/memory_bytes.22: 2147483648/memory_bytes\\22: 4096/' %t.mlir | not alpa-opt --alpa-build-schedule --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=SMALL
// RUN: sed 's/devices = \[1\]/devices = [9]/' %t.mlir | not alpa-opt --alpa-build-schedule 2>&1 | FileCheck %s --check-prefix=OUTSIDE

// SMALL: error: alpa_programs_c8: a device of mesh {{[01]}} needs {{[0-9]+}} bytes here, but its program promises at most 4096
// OUTSIDE: error: mesh #alpa.mesh<shape = [1, 1], devices = [9]> has device 9, which is not in a cluster of 8

// CHECK: alpa.channel_capacity = 1 : i64
// CHECK: alpa.program @mesh_0 on 0 attributes {peak_bytes = 2147483648 : i64} {
// CHECK: alpa.run @stage_0::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: alpa.run @stage_0::@backward({{.*}}) {micro_batch = 0 : i64}
// CHECK: alpa.run @stage_0::@backward({{.*}}) {micro_batch = 3 : i64}
// CHECK: alpa.run @stage_0::@update_0
// CHECK: alpa.program @mesh_1 on 1 attributes {peak_bytes = 2147483648 : i64} {
// CHECK: alpa.run @stage_1::@backward_input({{.*}}) {micro_batch = 0 : i64}
// CHECK: alpa.run @stage_1::@backward_weight({{.*}}) {micro_batch = 3 : i64}
// CHECK: alpa.run @stage_1::@update_0
