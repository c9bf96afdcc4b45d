// Stages that one search solved are there for the next one; whatever decides them tells them apart.
// RUN: rm -rf %t && mkdir %t
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8" -o %t/without.mlir
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 cache-dir=%t/cache" -o %t/first.mlir
// RUN: FileCheck %s --check-prefix=SOLVED < %t/first.mlir
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 cache-dir=%t/cache" -o %t/second.mlir
// RUN: FileCheck %s --check-prefix=LOADED < %t/second.mlir
// RUN: sed -E "s/alpa.planning = [^}]*//" %t/without.mlir > %t/without.txt
// RUN: sed -E "s/alpa.planning = [^}]*//" %t/first.mlir > %t/first.txt
// RUN: sed -E "s/alpa.planning = [^}]*//" %t/second.mlir > %t/second.txt
// RUN: diff %t/without.txt %t/first.txt
// RUN: diff %t/first.txt %t/second.txt

// Another memory limit, number of micro-batches, and a link that is slower.
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 memory-fraction=0.5 cache-dir=%t/cache" | FileCheck %s --check-prefix=SOLVED
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 cache-dir=%t/cache" | FileCheck %s --check-prefix=SOLVED
// RUN: %python -c "import re, sys; t = open(sys.argv[1]).read(); t = re.search(r'alpa.cluster = \"(.*?)\", alpa', t)[1]; t = t.replace('\\\\0A', ' ').replace('\\\\22', chr(34)); t = re.sub(r'(intra_host.*?bandwidth.: )[0-9.e+]+', r'\g<1>12345', t); open(sys.argv[2], 'w').write(t)" %t/first.mlir %t/slower.yaml
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t/slower.yaml num-micro-batches=8 cache-dir=%t/cache" | FileCheck %s --check-prefix=SOLVED

// Damaged entries are solved again.
// RUN: sed -i "s/1/2/" %t/cache/*.stage
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 cache-dir=%t/cache" -o %t/third.mlir
// RUN: FileCheck %s --check-prefix=SOLVED < %t/third.mlir
// RUN: sed -E "s/alpa.planning = [^}]*//" %t/third.mlir > %t/third.txt
// RUN: diff %t/first.txt %t/third.txt

// A folder that cannot be made.
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test cache-dir=%s/cache" 2>&1 | FileCheck %s --check-prefix=FOLDER

// SOLVED: solved_stages = {{[1-9]}}
// LOADED: solved_stages = 0 : i64
// FOLDER: error: alpa-search-stages: cache-dir: cannot make the folder '{{.*}}solved-stages.mlir/cache' for solved stages: Not a directory
module {
  func.func @main(%w0: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %w1: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %1 = stablehlo.dot_general %0, %w1, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %5 = stablehlo.subtract %w0, %4 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %6 = stablehlo.subtract %w1, %2 {alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    return %5, %6 : tensor<64x64xf32>, tensor<64x64xf32>
  }
}
