// Several stages on each mesh: stage i lies on mesh i modulo their number.
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b submeshes=1x2,1x2" | FileCheck %s --check-prefix=TWO
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b virtual-stages=3 submeshes=1x4 layer-ranges=0-2,2-3,3-4" | FileCheck %s --check-prefix=ONE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b" | FileCheck %s --check-prefix=AUTO
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b pipeline=uniform" | FileCheck %s --check-prefix=UNIFORM
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b,1f1b,zb-h1" | FileCheck %s --check-prefix=EITHER
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 schedule=interleaved-1f1b max-devices=3" | FileCheck %s --check-prefix=FEW
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b virtual-stages=3 submeshes=1x2,1x2" 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b virtual-stages=5" 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b submeshes=1x4,1x2" 2>&1 | FileCheck %s --check-prefix=UNEQUAL
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=zb-h1 virtual-stages=2" 2>&1 | FileCheck %s --check-prefix=APART
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b submeshes=1x2,1x2 layer-ranges=0-1,1-4" 2>&1 | FileCheck %s --check-prefix=RANGES
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b memory-fraction=1e-6" 2>&1 | FileCheck %s --check-prefix=MEMORY
// RUN: echo '{name: unequal, device_types: {d: {memory_bytes: 2GiB, memory_bandwidth: 1e10, peak_flops: {float32: 2e10}}}, hosts: [{devices: 4, device_type: d}, {devices: 2, device_type: d}], links: {intra_host: {bandwidth: 4e9, latency: 2e-5}, inter_host: {bandwidth: 1e9, latency: 1e-4}}}' > %t.yaml
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml num-micro-batches=4 schedule=interleaved-1f1b" | FileCheck %s --check-prefix=HOSTS

// TWO: alpa.schedule = "interleaved-1f1b", alpa.stages = [
// TWO-SAME: #alpa.stage<mesh = <shape = [[A:\[[12], [12]\]]], devices = [0, 1]>, layers = [0, 1]
// TWO-SAME: #alpa.stage<mesh = <shape = [[B:\[[12], [12]\]]], devices = [2, 3]>, layers = [1, 2]
// TWO-SAME: #alpa.stage<mesh = <shape = [[A]], devices = [0, 1]>, layers = [2, 3]
// TWO-SAME: #alpa.stage<mesh = <shape = [[B]], devices = [2, 3]>, layers = [3, 4]
// TWO: dot_general {{.*}}alpa.layer = 2 : i64{{.*}}alpa.stage = 2 : i64

// ONE: devices = [0, 1, 2, 3]>, layers = [0, 2]
// ONE-SAME: devices = [0, 1, 2, 3]>, layers = [2, 3]
// ONE-SAME: devices = [0, 1, 2, 3]>, layers = [3, 4]

// AUTO: alpa.schedule = "interleaved-1f1b"
// UNIFORM: devices = [0, 1, 2, 3, 4, 5, 6, 7]>, layers = [0, 2]
// UNIFORM-SAME: layers = [2, 4]
// FEW: alpa.planning = {{.*}}idle_reason = "at most 3 are wanted
// FEW-SAME: alpa.schedule = "interleaved-1f1b"
// EITHER: alpa.schedule = "{{interleaved-1f1b|1f1b|zb-h1}}"
// LAYERS: error: alpa-search-stages: 6 stages need as many layers, got 4; use fewer stages, or raise `layers`
// MANY: error: alpa-search-stages: 5 stages on a mesh need as many layers, got 4; use fewer virtual-stages
// UNEQUAL: error: alpa-search-stages: schedule 'interleaved-1f1b' needs equal submeshes, got 1x4 and 1x2
// APART: error: alpa-search-stages: virtual-stages needs a schedule that takes several stages on a mesh, such as interleaved-1f1b; got 'zb-h1'
// RANGES: error: alpa-search-stages: expected one of layer-ranges for each of the stages, got 2 for 4
// MEMORY: error: alpa-search-stages: no plan fits into memory: with schedule 'interleaved-1f1b' the fastest one needs {{.*}} on a device of mesh {{.*}} for its 2 stages, {{.*}} are available; use fewer virtual-stages
// Parts of unequal hosts are equal meshes.
// HOSTS: alpa.schedule = "interleaved-1f1b", alpa.stages = [
// HOSTS-SAME: devices = [0, 1]>, layers = [0, 1]
// HOSTS-SAME: devices = [2, 3]>, layers = [1, 2]
// HOSTS-SAME: devices = [0, 1]>, layers = [2, 3]
// HOSTS-SAME: devices = [2, 3]>, layers = [3, 4]
module {
  func.func @main(%w0: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %w1: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %w2: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64}, %w3: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 3 : i64}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
    %y0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %y1 = stablehlo.dot_general %y0, %w1, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %y2 = stablehlo.dot_general %y1, %w2, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %y3 = stablehlo.dot_general %y2, %w3, contracting_dims = [1] x [0] {alpa.eqn = 3 : i64, alpa.layer = 3 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g3 = stablehlo.dot_general %y2, %y3, contracting_dims = [0] x [0] {alpa.eqn = 3 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %d3 = stablehlo.dot_general %y3, %w3, contracting_dims = [1] x [1] {alpa.eqn = 3 : i64, alpa.layer = 3 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g2 = stablehlo.dot_general %y1, %d3, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %d2 = stablehlo.dot_general %d3, %w2, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g1 = stablehlo.dot_general %y0, %d2, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %d1 = stablehlo.dot_general %d2, %w1, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g0 = stablehlo.dot_general %x, %d1, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %n0 = stablehlo.subtract %w0, %g0 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %n1 = stablehlo.subtract %w1, %g1 {alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %n2 = stablehlo.subtract %w2, %g2 {alpa.layer = 2 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %n3 = stablehlo.subtract %w3, %g3 {alpa.layer = 3 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    return %n0, %n1, %n2, %n3 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
}
