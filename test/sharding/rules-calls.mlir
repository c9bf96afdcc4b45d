// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// Rules that stand on calls. A factor that a result lacks, or that only results have, is whole.
func.func @calls(%x: tensor<8x4x16xf32>, %y: tensor<4x16x2xf32>, %b: tensor<4x6xi1>,
                 %l: tensor<2x16x128xf8E4M3FN>, %r: tensor<2x8x128xf8E4M3FN>, %ls: tensor<2x16x4xf8E8M0FNU>, %rs: tensor<2x8x4xf8E8M0FNU>) {
  // expected-remark @+1 {{([a, b, c], [b, c, d]) -> [a, d] {a = 8, b = 4 sequential, c = 16 reduction, d = 2}}}
  %0 = stablehlo.custom_call @contract(%x, %y) {alpa.sharding_rule = "m h k, h k n -> m n reduction={k}"} : (tensor<8x4x16xf32>, tensor<4x16x2xf32>) -> tensor<8x2xf32>
  // Leading dimensions; a workspace; a result of its own.
  // expected-remark @+1 {{([a, b, c]) -> [a, b, d], [a], [e] {a = 8, b = 4 sequential, c = 16 sequential, d = 3 sequential, e = 0 sequential}}}
  %1:3 = stablehlo.custom_call @largest(%x) {alpa.sharding_rule = "... m k -> ... m n, ..., w"} : (tensor<8x4x16xf32>) -> (tensor<8x4x3xf32>, tensor<8xi32>, tensor<0xui8>)
  // A dimension of two factors, one of which has a dimension of its own elsewhere.
  // expected-remark @+1 {{([a, b, c.d]) -> [a, b, c, d] {a = 8, b = 4, c = 4, d = 4}}}
  %2 = stablehlo.custom_call @heads(%x) {alpa.sharding_rule = "b s (h d) -> b s h d"} : (tensor<8x4x16xf32>) -> tensor<8x4x4x4xf32>
  // expected-remark @+1 {{([a, b, c.d]) -> [a, b, c.d] {a = 8, b = 4 sequential, c = 4, d = 4 sequential}}}
  %3 = stablehlo.custom_call @heads(%x) {alpa.sharding_rule = "b s (h d) -> b s (h d) {d=4} need_replication={s, d}"} : (tensor<8x4x16xf32>) -> tensor<8x4x16xf32>
  // Booleans are not summed, and nothing is known of a diagonal.
  // expected-remark @+1 {{([a, b]) -> [a] {a = 4 sequential, b = 6 sequential}}}
  %4 = stablehlo.custom_call @any(%b) {alpa.sharding_rule = "m k -> m reduction={k} need_replication={m}"} : (tensor<4x6xi1>) -> tensor<4xi1>
  // Blocks of numbers with a scale each.
  // expected-remark @+1 {{([a, b, d.e], [a, c, d.e], [a, b, d], [a, c, d]) -> [a, b, c] {a = 2, b = 16, c = 8, d = 4 reduction, e = 32 sequential}}}
  %5 = stablehlo.custom_call @__op$block_scaled_dot(%l, %r, %ls, %rs) : (tensor<2x16x128xf8E4M3FN>, tensor<2x8x128xf8E4M3FN>, tensor<2x16x4xf8E8M0FNU>, tensor<2x8x4xf8E8M0FNU>) -> tensor<2x16x8xf32>
  return
}
