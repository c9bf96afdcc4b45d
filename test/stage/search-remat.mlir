// Each of four layers keeps its input and a derivative; computed again, its input alone. Of two
// stages the first keeps two micro-batches in flight under 1F1B, the last one, whose gradients
// come at once.
// RUN: echo '{device_types: {small: {memory_bytes: MEMORY, memory_bandwidth: 1e10, peak_flops: {float32: 2e10}}}, hosts: {devices: 2, device_type: small}, links: {intra_host: {bandwidth: 4e9, latency: 2e-6}, inter_host: {bandwidth: 1e8, latency: 5e-5}}}' > %t.yaml

// As it is written, the first stage needs 272 KiB and the second 208 KiB.
// RUN: sed s/MEMORY/272KiB/ %t.yaml > %t.272KiB.yaml
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.272KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 remat=auto" | FileCheck %s --check-prefix=ROOMY
// ROOMY-NOT: alpa.rematerialized
// ROOMY: layers = [0, 2]
// ROOMY-SAME: peak_bytes = 278528 : i64, rematerialized_layers = 0 : i64
// ROOMY-SAME: layers = [2, 4]
// ROOMY-SAME: peak_bytes = 212992 : i64, rematerialized_layers = 0 : i64
// ROOMY-NOT: optimization_barrier

// With less, the first alone computes its layers again.
// RUN: sed s/MEMORY/240KiB/ %t.yaml > %t.240KiB.yaml
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.240KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 remat=auto" | FileCheck %s --check-prefix=TIGHT
// TIGHT: layers = [0, 2]
// TIGHT-SAME: peak_bytes = 212992 : i64, rematerialized_layers = 2 : i64
// TIGHT-SAME: layers = [2, 4]
// TIGHT-SAME: peak_bytes = 212992 : i64, rematerialized_layers = 0 : i64
// TIGHT: func.func @main(
// TIGHT-SAME: alpa.rematerialized = array<i64: 0, 1>
// TIGHT-NOT: optimization_barrier {{.*}}alpa.stage = 1
// TIGHT: optimization_barrier {{.*}}alpa.layer = 1 : i64, {{.*}}alpa.stage = 0
// TIGHT: optimization_barrier {{.*}}alpa.layer = 0 : i64, {{.*}}alpa.stage = 0
// TIGHT-NOT: func.func

// The default computes nothing again.
// RUN: sed s/MEMORY/240KiB/ %t.yaml > %t.240KiB.yaml
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.240KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 " 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: no plan fits into memory: the fastest one needs 272.00 KiB on a device of stage 0 of 2, 240.00 KiB are available
// NONE-SAME: or rematerialization (jax.checkpoint)

// Rematerialization is no advice where it was tried.
// RUN: sed s/MEMORY/200KiB/ %t.yaml > %t.200KiB.yaml
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.200KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 remat=auto" 2>&1 | FileCheck %s --check-prefix=SHORT
// SHORT: error: alpa-search-stages: no plan fits into memory: with layers computed again the fastest one needs 208.00 KiB on a device of stage 0 of 2, 200.00 KiB are available
// SHORT-SAME: the plan that is closest, of 2 stages, needs 1.04 times the memory for stage 0
// SHORT-NOT: rematerialization

// A method may restrict the gradients of what is computed again, too.
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.240KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 remat=auto method=data-parallel" | FileCheck %s --check-prefix=TIGHT
// One whose choices depend on the whole step has the same for all stages.
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.240KiB.yaml num-micro-batches=4 memory-fraction=1 submeshes=1x1,1x1 layer-ranges=0-2,2-4 remat=auto method=heuristic" | FileCheck %s --check-prefix=WHOLE
// WHOLE: rematerialized_layers = 2 : i64
// WHOLE-SAME: rematerialized_layers = 2 : i64

// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.240KiB.yaml remat=all" 2>&1 | FileCheck %s --check-prefix=WORD
// WORD: error: alpa-search-stages: remat must be none or auto, got 'all'
func.func @main(%w0: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %w1: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %w2: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64}, %w3: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 3 : i64}, %x0: tensor<64x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
  %a0 = stablehlo.dot_general %x0, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b0 = stablehlo.cosine %a0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %x1 = stablehlo.sine %a0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %a1 = stablehlo.dot_general %x1, %w1, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b1 = stablehlo.cosine %a1 {alpa.eqn = 3 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %x2 = stablehlo.sine %a1 {alpa.eqn = 3 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %a2 = stablehlo.dot_general %x2, %w2, contracting_dims = [1] x [0] {alpa.eqn = 4 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b2 = stablehlo.cosine %a2 {alpa.eqn = 5 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %x3 = stablehlo.sine %a2 {alpa.eqn = 5 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %a3 = stablehlo.dot_general %x3, %w3, contracting_dims = [1] x [0] {alpa.eqn = 6 : i64, alpa.layer = 3 : i64, alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b3 = stablehlo.cosine %a3 {alpa.eqn = 7 : i64, alpa.layer = 3 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %x4 = stablehlo.sine %a3 {alpa.eqn = 7 : i64, alpa.layer = 3 : i64, alpa.phase = "forward"} : tensor<64x64xf32>
  %d4 = stablehlo.multiply %x4, %x4 {alpa.eqn = 7 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : tensor<64x64xf32>
  %e3 = stablehlo.multiply %d4, %b3 {alpa.eqn = 7 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : tensor<64x64xf32>
  %g3 = stablehlo.dot_general %x3, %e3, contracting_dims = [0] x [0] {alpa.eqn = 6 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d3 = stablehlo.dot_general %e3, %w3, contracting_dims = [1] x [1] {alpa.eqn = 6 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %e2 = stablehlo.multiply %d3, %b2 {alpa.eqn = 5 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : tensor<64x64xf32>
  %g2 = stablehlo.dot_general %x2, %e2, contracting_dims = [0] x [0] {alpa.eqn = 4 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d2 = stablehlo.dot_general %e2, %w2, contracting_dims = [1] x [1] {alpa.eqn = 4 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %e1 = stablehlo.multiply %d2, %b1 {alpa.eqn = 3 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : tensor<64x64xf32>
  %g1 = stablehlo.dot_general %x1, %e1, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d1 = stablehlo.dot_general %e1, %w1, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %e0 = stablehlo.multiply %d1, %b0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<64x64xf32>
  %g0 = stablehlo.dot_general %x0, %e0, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %n0 = stablehlo.subtract %w0, %g0 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<64x64xf32>
  %n1 = stablehlo.subtract %w1, %g1 {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<64x64xf32>
  %n2 = stablehlo.subtract %w2, %g2 {alpa.eqn = 4 : i64, alpa.layer = 2 : i64, alpa.phase = "update"} : tensor<64x64xf32>
  %n3 = stablehlo.subtract %w3, %g3 {alpa.eqn = 6 : i64, alpa.layer = 3 : i64, alpa.phase = "update"} : tensor<64x64xf32>
  return %n0, %n1, %n2, %n3 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}
