// The step of search-remat.mlir with values of 256 KiB: of each layer gradients read its input
// and a derivative, which wait in the host's memory, but for those of the last layer.
// RUN: echo '{device_types: {small: {memory_bytes: 16MiB, memory_bandwidth: 1e10, peak_flops: {float32: 2e10}}}, hosts: {devices: 2, device_type: small, host_memory: {bytes: HOST, bandwidth: 1e9, latency: 1e-5}}, links: {intra_host: {bandwidth: 4e9, latency: 2e-6}, inter_host: {bandwidth: 1e8, latency: 5e-5}}}' > %t.yaml
// RUN: sed s/HOST/64MiB/ %t.yaml > %t.roomy.yaml
// RUN: sed s/64x64xf32/256x256xf32/g %S/search-remat.mlir > %t.mlir

// Two micro-batches of the first stage are in flight, each with two derivatives and what it hands
// from its first layer to the second; one of the other stage, with a derivative and an input.
// RUN: alpa-opt %t.mlir -alpa-search-stages="cluster=%t.roomy.yaml num-micro-batches=4 submeshes=1x1,1x1 layer-ranges=0-2,2-4 offload=activations" | FileCheck %s
// CHECK: layers = [0, 2]
// CHECK-SAME: host_bytes = 1572864 : i64
// CHECK-SAME: layers = [2, 4]
// CHECK-SAME: host_bytes = 524288 : i64
// CHECK: func.func @main(
// CHECK: stablehlo.cosine {{.*}}alpa.layer = 0 : i64, alpa.offloaded = array<i64: 0>
// CHECK: stablehlo.cosine {{.*}}alpa.layer = 2 : i64, alpa.offloaded = array<i64: 0>
// CHECK-NOT: alpa.layer = 3 : i64, alpa.offloaded

// Where layers may be computed again, what the link carries beside other work is kept there.
// RUN: alpa-opt %t.mlir -alpa-search-stages="cluster=%t.roomy.yaml num-micro-batches=4 submeshes=1x1,1x1 layer-ranges=0-2,2-4 offload=activations remat=auto" | FileCheck %s --check-prefix=AUTO
// AUTO: host_bytes
// AUTO: alpa.offloaded

// The host's memory is a limit of its own.
// RUN: sed s/HOST/2MiB/ %t.yaml > %t.short.yaml
// RUN: not alpa-opt %t.mlir -alpa-search-stages="cluster=%t.short.yaml num-micro-batches=4 submeshes=1x1,1x1 layer-ranges=0-2,2-4 offload=activations" 2>&1 | FileCheck %s --check-prefix=SHORT
// SHORT: 1.50 MiB more lie in its host's memory, of which a device has too little

// RUN: not alpa-opt %S/search-remat.mlir -alpa-search-stages="cluster=%t.roomy.yaml offload=activations" 2>&1 | FileCheck %s --check-prefix=SMALL
// SMALL: offload: but for the last layer, gradients read no value of 256 KiB or more
// RUN: not alpa-opt %t.mlir -alpa-search-stages="cluster=%t.roomy.yaml offload=all" 2>&1 | FileCheck %s --check-prefix=WORD
// WORD: error: alpa-search-stages: offload must be none or activations, got 'all'
