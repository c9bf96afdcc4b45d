// CASE cbrt
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.cbrt %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE ceil
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.ceil %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE cosine
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.cosine %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE exponential
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.exponential %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE exponential_minus_one
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.exponential_minus_one %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE floor
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.floor %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE logistic
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.logistic %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE negate
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.negate %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE round_nearest_afz
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.round_nearest_afz %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE round_nearest_even
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.round_nearest_even %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE sign
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.sign %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE sine
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.sine %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE tan
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tan %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE tanh
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE abs
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.abs %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE log arg0=between(0.1,3)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.log %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE log_plus_one arg0=between(0.1,3)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.log_plus_one %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE rsqrt arg0=between(0.1,3)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.rsqrt %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE sqrt arg0=between(0.1,3)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.sqrt %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE add
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE atan2
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.atan2 %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE divide
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.divide %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE maximum
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.maximum %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE minimum
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.minimum %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE multiply
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.multiply %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE remainder
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.remainder %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE subtract
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.subtract %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE power arg0=between(0.1,3)
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.power %arg0, %arg1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.acos arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.acos %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.asin arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.asin %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.asinh arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.asinh %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.atan arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.atan %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.atanh arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.atanh %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.bessel_i1e arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.bessel_i1e %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.conj arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.conj %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.cosh arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.cosh %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.digamma arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.digamma %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.erf arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.erf %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.erf_inv arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.erf_inv %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.erfc arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.erfc %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.lgamma arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.lgamma %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.sinh arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.sinh %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.square arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.square %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.tan arg0=between(0.1,0.9)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.tan %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.acosh arg0=between(1.1,3)
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.acosh %arg0 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.next_after arg0=between(2,3) arg1=between(1,2)
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.next_after %arg0, %arg1 : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.polygamma arg0=integers(1,4) arg1=between(1,2)
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.polygamma %arg0, %arg1 : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE chlo.zeta arg0=between(2,3) arg1=between(1,2)
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = chlo.zeta %arg0, %arg1 : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE count_leading_zeros
func.func @main(%arg0: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.count_leading_zeros %arg0 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE not
func.func @main(%arg0: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.not %arg0 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE popcnt
func.func @main(%arg0: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.popcnt %arg0 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE and_int
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.and %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE or_int
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.or %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE xor_int
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.xor %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE add_int
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE multiply_int
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.multiply %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE shift_left arg1=between(0,9)
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.shift_left %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE shift_right_arithmetic arg1=between(0,9)
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.shift_right_arithmetic %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE shift_right_logical arg1=between(0,9)
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.shift_right_logical %arg0, %arg1 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE mulhi
func.func @main(%arg0: tensor<8x8xi32>, %arg1: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = chlo.mulhi %arg0, %arg1 : tensor<8x8xi32>, tensor<8x8xi32> -> tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE chlo.is_inf
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xi1> {
  %0 = chlo.is_inf %arg0 : tensor<8x8xf32> -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}

// CASE chlo.is_neg_inf
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xi1> {
  %0 = chlo.is_neg_inf %arg0 : tensor<8x8xf32> -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}

// CASE chlo.is_pos_inf
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xi1> {
  %0 = chlo.is_pos_inf %arg0 : tensor<8x8xf32> -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}

// CASE is_finite
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xi1> {
  %0 = stablehlo.is_finite %arg0 : (tensor<8x8xf32>) -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}

// CASE real
func.func @main(%arg0: tensor<8x8xcomplex<f32>>) -> tensor<8x8xf32> {
  %0 = stablehlo.real %arg0 : (tensor<8x8xcomplex<f32>>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE imag
func.func @main(%arg0: tensor<8x8xcomplex<f32>>) -> tensor<8x8xf32> {
  %0 = stablehlo.imag %arg0 : (tensor<8x8xcomplex<f32>>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE convert
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xbf16> {
  %0 = stablehlo.convert %arg0 : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}

// CASE complex
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xcomplex<f32>> {
  %0 = stablehlo.complex %arg0, %arg1 : tensor<8x8xcomplex<f32>>
  return %0 : tensor<8x8xcomplex<f32>>
}

// CASE compare
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xi1> {
  %0 = stablehlo.compare LT, %arg0, %arg1, FLOAT : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}

// CASE add_complex
func.func @main(%arg0: tensor<8x8xcomplex<f32>>, %arg1: tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<8x8xcomplex<f32>>
  return %0 : tensor<8x8xcomplex<f32>>
}

// CASE add_scalar
func.func @main(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.add %arg0, %arg1 : tensor<f32>
  return %0 : tensor<f32>
}

// CASE reduce_precision
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.reduce_precision %arg0, format = e5m2 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE select_scalar
func.func @main(%arg0: tensor<i1>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE select
func.func @main(%arg0: tensor<8x8xi1>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<8x8xi1>, tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE clamp_scalar
func.func @main(%arg0: tensor<f32>, %arg1: tensor<8x8xf32>, %arg2: tensor<f32>) -> tensor<8x8xf32> {
  %0 = stablehlo.clamp %arg0, %arg1, %arg2 : (tensor<f32>, tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE clamp
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.clamp %arg0, %arg1, %arg2 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE narrow
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8x4xi8> {
  %0 = stablehlo.bitcast_convert %arg0 : (tensor<8x8xf32>) -> tensor<8x8x4xi8>
  return %0 : tensor<8x8x4xi8>
}

// CASE widen
func.func @main(%arg0: tensor<8x8x4xi8>) -> tensor<8x8xi32> {
  %0 = stablehlo.bitcast_convert %arg0 : (tensor<8x8x4xi8>) -> tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE iota_rows
func.func @main() -> tensor<8x8xi32> {
  %0 = stablehlo.iota dim = 0 : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE iota_columns
func.func @main() -> tensor<8x16xf32> {
  %0 = stablehlo.iota dim = 1 : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE constant
func.func @main() -> tensor<8x8xi32> {
  %c = stablehlo.constant dense<[[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15], [16, 17, 18, 19, 20, 21, 22, 23], [24, 25, 26, 27, 28, 29, 30, 31], [32, 33, 34, 35, 36, 37, 38, 39], [40, 41, 42, 43, 44, 45, 46, 47], [48, 49, 50, 51, 52, 53, 54, 55], [56, 57, 58, 59, 60, 61, 62, 63]]> : tensor<8x8xi32>
  return %c : tensor<8x8xi32>
}

// CASE splat
func.func @main() -> tensor<8x8xi32> {
  %c = stablehlo.constant dense<3> : tensor<8x8xi32>
  return %c : tensor<8x8xi32>
}

// CASE barrier
func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<16xi32>) -> (tensor<8x4xf32>, tensor<16xi32>) {
  %0:2 = stablehlo.optimization_barrier %arg0, %arg1 : tensor<8x4xf32>, tensor<16xi32>
  return %0#0, %0#1 : tensor<8x4xf32>, tensor<16xi32>
}

// CASE chlo._asin_acos_kernel
func.func @main(%arg0: tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>> {
  %0 = chlo._asin_acos_kernel %arg0 : tensor<8x8xcomplex<f32>> -> tensor<8x8xcomplex<f32>>
  return %0 : tensor<8x8xcomplex<f32>>
}
