// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 pipeline=intra-only" | FileCheck %s --check-prefix=INTRA
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 pipeline=inter-only" | FileCheck %s --check-prefix=INTER
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 pipeline=equal-layer" | FileCheck %s --check-prefix=LAYER
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 pipeline=equal-mesh" | FileCheck %s --check-prefix=MESH
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 pipeline=uniform method=megatron" | FileCheck %s --check-prefix=UNIFORM
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 schedule=auto most-virtual-stages=6 max-stages=1" | FileCheck %s --check-prefix=ONE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 schedule=auto most-virtual-stages=6 max-stages=3" | FileCheck %s --check-prefix=THREE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 schedule=auto most-virtual-stages=6 layer-ranges=0-1,1-2,2-7,7-8" | FileCheck %s --check-prefix=KEPT
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=64 start-submeshes=1x4,1x4 start-layers=0-5,5-8" | FileCheck %s --check-prefix=NEAR
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test:1 num-micro-batches=64 start-submeshes=1x4@a100,1x4@a100 start-layers=0-3,3-6 start-schedule=zb-h1" | FileCheck %s --check-prefix=FEWER
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test pipeline=equal" 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test pipeline=equal-mesh submeshes=1x4,1x4" 2>&1 | FileCheck %s --check-prefix=GIVEN
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test:3 pipeline=inter-only" 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: echo '{name: unequal, device_types: {d: {memory_bytes: 2GiB, memory_bandwidth: 1e10, peak_flops: {float32: 2e10}}}, hosts: [{devices: 4, device_type: d}, {devices: 2, device_type: d}], links: {intra_host: {bandwidth: 4e9, latency: 2e-5}, inter_host: {bandwidth: 1e9, latency: 1e-4}}}' > %t.yaml
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.yaml pipeline=intra-only" 2>&1 | FileCheck %s --check-prefix=HOSTS
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.yaml pipeline=uniform" 2>&1 | FileCheck %s --check-prefix=DIVIDES

// Eight layers, of which the last is as heavy as all others together, and batches of
// one: no two of the methods choose alike.

// INTRA: alpa.stages = [
// INTRA-SAME: devices = [0, 1, 2, 3, 4, 5, 6, 7]>, layers = [0, 8]

// INTER: alpa.stages = [
// INTER-SAME: shape = [1, 1], devices = [0]>, layers = [0, 1]
// INTER-SAME: shape = [1, 1], devices = [1]>, layers = [1, 2]
// INTER-SAME: shape = [1, 1], devices = [2]>, layers = [2, 3]
// INTER-SAME: shape = [1, 1], devices = [3]>, layers = [3, 4]
// INTER-SAME: shape = [1, 1], devices = [4]>, layers = [4, 5]
// INTER-SAME: shape = [1, 1], devices = [5]>, layers = [5, 6]
// INTER-SAME: shape = [1, 1], devices = [6]>, layers = [6, 7]
// INTER-SAME: shape = [1, 1], devices = [7]>, layers = [7, 8]

// LAYER: alpa.stages = [
// LAYER-SAME: devices = [2]>, layers = [0, 2]
// LAYER-SAME: devices = [3]>, layers = [2, 4]
// LAYER-SAME: devices = [0, 1]>, layers = [4, 6]
// LAYER-SAME: devices = [4, 5, 6, 7]>, layers = [6, 8]

// The first stage sends its weight to the second one, which so gets a layer less.
// MESH: alpa.stages = [
// MESH-SAME: devices = [0, 1, 2, 3]>, layers = [0, 6]
// MESH-SAME: devices = [4, 5, 6, 7]>, layers = [6, 8]

// No more stages than are wanted, whatever the schedule; the layers that are given, on any meshes.
// ONE: alpa.stages = [
// ONE-SAME: layers = [0, 8]
// THREE: alpa.stages = [
// THREE-SAME: layers = [0,
// THREE-COUNT-2: layers = [
// THREE-SAME: 8],
// THREE-NOT: layers = [
// KEPT: alpa.stages = [
// KEPT-SAME: layers = [0, 1]
// KEPT-SAME: layers = [1, 2]
// KEPT-SAME: layers = [2, 7]
// KEPT-SAME: layers = [7, 8]

// Near a plan: meshes of its sizes, and of the next ones.
// NEAR: possible_stages = 216
// NEAR: alpa.stages = [
// NEAR-SAME: layers = [0,
// FEWER: possible_stages = 108
// FEWER: alpa.stages = [
// FEWER-SAME: 8],

// UNIFORM: alpa.stages = [
// UNIFORM-SAME: shape = [1, 4], devices = [0, 1, 2, 3]>, layers = [0, 4]
// UNIFORM-SAME: shape = [1, 4], devices = [4, 5, 6, 7]>, layers = [4, 8]

// UNKNOWN: error: alpa-search-stages: unknown pipeline 'equal', expected one of auto, intra-only, inter-only, equal-layer, equal-mesh, uniform
// GIVEN: error: alpa-search-stages: pipeline 'equal-mesh' chooses the stages, which submeshes give; leave one of them out
// LAYERS: error: alpa-search-stages: pipeline 'inter-only' needs a layer for each of 12 devices, got 8; raise `layers`
// HOSTS: error: alpa-search-stages: pipeline 'intra-only' needs a cluster that is one mesh: hosts with as many devices each
// DIVIDES: error: alpa-search-stages: pipeline 'uniform' finds no number of stages that divides both 8 layers and 6 devices
module {
  func.func @main(%x: tensor<1x512xf32> {alpa.kind = "batch"}, %w: tensor<512x512xf32> {alpa.kind = "state"}, %wide: tensor<512x3584xf32> {alpa.kind = "state"}) -> tensor<1x3584xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] {alpa.eqn = 3 : i64, alpa.layer = 3 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] {alpa.eqn = 4 : i64, alpa.layer = 4 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] {alpa.eqn = 5 : i64, alpa.layer = 5 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [0] {alpa.eqn = 6 : i64, alpa.layer = 6 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x512xf32>) -> tensor<1x512xf32>
    %7 = stablehlo.dot_general %6, %wide, contracting_dims = [1] x [0] {alpa.eqn = 7 : i64, alpa.layer = 7 : i64, alpa.phase = "forward"} : (tensor<1x512xf32>, tensor<512x3584xf32>) -> tensor<1x3584xf32>
    return %7 : tensor<1x3584xf32>
  }
}
