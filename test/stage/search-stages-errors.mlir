// RUN: not alpa-opt %s -alpa-search-stages 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test method=zero" 2>&1 | FileCheck %s --check-prefix=METHOD
// METHOD: error: alpa-search-stages: unknown method 'zero', expected one of auto, data-parallel, zero-2
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test mesh-axes=4" 2>&1 | FileCheck %s --check-prefix=AXES
// AXES: error: alpa-search-stages: mesh-axes must be 2 or 3, got 4
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=fifo" 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=1f1b,fifo" 2>&1 | FileCheck %s --check-prefix=SCHEDULE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=0" 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1xa" 2>&1 | FileCheck %s --check-prefix=FORM
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=3x4" 2>&1 | FileCheck %s --check-prefix=PART
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1x3,1x3,1x2" 2>&1 | FileCheck %s --check-prefix=LAYERS
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1x4,2x4" 2>&1 | FileCheck %s --check-prefix=SIDE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1x4,1x4 layer-ranges=0-1,0-2" 2>&1 | FileCheck %s --check-prefix=RANGE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1x4,1x4 mesh-shapes=2x2" 2>&1 | FileCheck %s --check-prefix=SHAPES
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test memory-fraction=1e-6" 2>&1 | FileCheck %s --check-prefix=MEMORY
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test memory-fraction=1e-6 explain-misfit=false" 2>&1 | FileCheck %s --check-prefix=BRIEF
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test time-limit=-1" 2>&1 | FileCheck %s --check-prefix=TIME
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test gap=-1" 2>&1 | FileCheck %s --check-prefix=GAP
// RUN: printf 'device_types: {v: {memory_bytes: 1GiB, memory_bandwidth: 1e10, peak_flops: {float32: 1e10}}}\nhosts: [{devices: 3, device_type: v}, {devices: 5, device_type: v}]\nlinks: {intra_host: {bandwidth: 1e9, latency: 1e-6}, inter_host: {bandwidth: 1e9, latency: 1e-6}}\n' > %t.yaml
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.yaml pipeline=equal-mesh" 2>&1 | FileCheck %s --check-prefix=EQUAL
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test max-devices=4 pipeline=uniform" 2>&1 | FileCheck %s --check-prefix=MOST
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test submeshes=1x4,1x4 max-stages=2" 2>&1 | FileCheck %s --check-prefix=STAGES
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test layer-ranges=0-1,1-2 max-stages=1" 2>&1 | FileCheck %s --check-prefix=FEW
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test layer-ranges=0-1" 2>&1 | FileCheck %s --check-prefix=END
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test layer-ranges=0-2 pipeline=uniform" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test layer-ranges=0-1,1-2 max-devices=1" 2>&1 | FileCheck %s --check-prefix=LIMITS
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test schedule=interleaved-1f1b max-stages=1" 2>&1 | FileCheck %s --check-prefix=SHARED
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=1x4" 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=1x4 start-layers=0-1,0-2" 2>&1 | FileCheck %s --check-prefix=CUT
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=1x4,1x4 start-layers=0-1" 2>&1 | FileCheck %s --check-prefix=EACH
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=4 start-layers=0-1" 2>&1 | FileCheck %s --check-prefix=SIZES
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=1x4 start-layers=0-1 pipeline=uniform" 2>&1 | FileCheck %s --check-prefix=FREE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test start-submeshes=1x4 start-layers=0-1 start-schedule=fifo" 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: sed 's/alpa.layer = 1 /alpa.layer = 100000 /' %s | not alpa-opt - -alpa-search-stages=cluster=cpu-test 2>&1 | FileCheck %s --check-prefix=FAR

// NONE: error: alpa-search-stages: option cluster is missing; give a cluster file or a preset
// SCHEDULE: error: alpa-search-stages: unknown schedule 'fifo'; expected 1f1b, 1f1b-overlap, gpipe, interleaved-1f1b, breadth-first, zb-h1, zb-auto, zb-v, v-half, v-min, dualpipe-v, custom or inference, several of them with commas between, or auto
// COUNT: error: alpa-search-stages: num-micro-batches must be 1 or more, got 0
// FORM: error: alpa-search-stages: submesh '1xa' must be hosts x devices of each host, such as 1x2
// PART: error: alpa-search-stages: submesh '3x4' is no part of cluster 'cpu-test'
// LAYERS: error: alpa-search-stages: 3 stages need as many layers, got 2
// SIDE: error: alpa-search-stages: the submeshes do not fit side by side into cluster 'cpu-test'
// RANGE: error: alpa-search-stages: layer range '0-2' must begin at layer 1
// SHAPES: error: alpa-search-stages: expected one of mesh-shapes for each of submeshes, got 1 for 2
// MEMORY: error: alpa-search-stages: no plan fits into memory: the fastest one needs {{.*}} on a device of stage {{.*}} are available; it holds {{.*}} of state and gradients{{.*}}; the largest arguments are {{.*}}; layer 0 alone needs {{[0-9.]+}} times the memory, on any submesh that was tried; use more devices
// MEMORY-NOT: func.func
// BRIEF: error: alpa-search-stages: no plan fits into memory{{$}}
// TIME: error: alpa-search-stages: time-limit must be above 0 seconds
// GAP: error: alpa-search-stages: gap and start-gap must be at least 0 and below 1, and epsilon at least 0
// EQUAL: error: alpa-search-stages: no plan exists: with pipeline 'equal-mesh' no stages use all devices of cluster {{.*}}; use pipeline 'auto'
// MOST: error: alpa-search-stages: max-devices needs pipeline auto and no submeshes: others say which devices a plan takes
// STAGES: error: alpa-search-stages: max-stages with submeshes, which say how many stages there are
// FEW: error: alpa-search-stages: 2 layer-ranges with max-stages 1
// END: error: alpa-search-stages: layer-ranges end after 1 of 2 layers
// TWICE: error: alpa-search-stages: layer-ranges with pipeline 'uniform', which chooses the layers
// LIMITS: error: alpa-search-stages: no plan exists with at most 1 device and stages of layers 0-1, 1-2
// SHARED: error: alpa-search-stages: 2 stages on a mesh are more than max-stages, 1
// BOTH: error: alpa-search-stages: start-submeshes and start-layers go together
// CUT: error: alpa-search-stages: layer range '0-2' must begin at layer 1 and end after it
// EACH: error: alpa-search-stages: 1 start-layers for 2 start-submeshes
// SIZES: error: alpa-search-stages: start-submeshes '4' must be hosts x devices of each, such as 1x2
// FREE: error: alpa-search-stages: start-submeshes need pipeline auto and no submeshes
// ORDER: error: alpa-search-stages: unknown start-schedule 'fifo'; expected 1f1b
// FAR: error: alpa-search-stages: op 'stablehlo.dot_general' is of layer 100000, but @main has 2 ops; number layers from 0, each with an op
module {
  func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state", alpa.name = "w"}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> tensor<32x64xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    return %1 : tensor<32x64xf32>
  }
}
