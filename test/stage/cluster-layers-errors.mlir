// RUN: not alpa-opt %s -alpa-cluster-layers=delta=-1 2>&1 | FileCheck %s --check-prefix=DELTA
// RUN: not alpa-opt %s -alpa-cluster-layers=balance=bytes 2>&1 | FileCheck %s --check-prefix=BALANCE
// RUN: not alpa-opt %s -alpa-cluster-layers=max-layers=0 2>&1 | FileCheck %s --check-prefix=MOST
// RUN: not alpa-opt %s -alpa-cluster-layers="layers=2 boundaries=1" 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: not alpa-opt %s -alpa-cluster-layers=boundaries=1,1 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: not alpa-opt %s -alpa-cluster-layers=boundaries=-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not alpa-opt %s -alpa-cluster-layers=boundaries=7 2>&1 | FileCheck %s --check-prefix=EMPTY
// RUN: not alpa-opt %s -alpa-cluster-layers=boundaries=0 2>&1 | FileCheck %s --check-prefix=FIRST

// DELTA: error: alpa-cluster-layers: delta must be 0 or more, got -1.00
// BALANCE: error: alpa-cluster-layers: unknown balance 'bytes'; expected communication or operators
// MOST: error: alpa-cluster-layers: max-layers must be 1 or more
// BOTH: error: alpa-cluster-layers: give either layers or boundaries
// ORDER: error: alpa-cluster-layers: boundaries must ascend from 0, got 1 after 1
// NEGATIVE: error: alpa-cluster-layers: boundaries must ascend from 0, got -1 after -1
// EMPTY: error: alpa-cluster-layers: layer 1 of the given boundaries holds no equation; equations of the forward computation are numbered from 0 to 1
// FIRST: error: alpa-cluster-layers: layer 0 of the given boundaries holds no equation
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %1 = stablehlo.negate %0 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<4xf32>
  return %1 : tensor<4xf32>
}
