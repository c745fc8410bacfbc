//! Linear layers.
mod common;
use common::*;
use kvq::{Bf16, Dtype, Matrix, QuantizeOptions, Rounding, Status};

const ROWS: usize = 48;
const COLUMNS: usize = 128;

fn quantized(scheme: &str, seed: u32) -> Matrix {
    let options = QuantizeOptions::new().scheme(scheme);
    Matrix::quantize(&context(), options, &numbers(ROWS * COLUMNS, seed), ROWS, COLUMNS).unwrap()
}

#[test]
fn a_layer_multiplies_by_the_weights_it_dequantizes_to_and_adds_its_bias() {
    let (bias, x, mut y) = (numbers(ROWS, 5), numbers(3 * COLUMNS, 2), vec![0.0f32; 3 * ROWS]);
    let options = QuantizeOptions::new().scheme("fp16").bias(&bias);
    let matrix = Matrix::quantize(&context(), options, &numbers(ROWS * COLUMNS, 1), ROWS, COLUMNS).unwrap();
    let w = matrix.dequantize(0..ROWS).unwrap();
    assert_eq!(matrix.dequantize(5..7).unwrap(), w[5 * COLUMNS..7 * COLUMNS]);
    matrix.linear(&x, &mut y).unwrap();
    let dot = |at: usize| -> f64 {
        let (x, w) = (&x[at / ROWS * COLUMNS..][..COLUMNS], &w[at % ROWS * COLUMNS..][..COLUMNS]);
        x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>() + f64::from(bias[at % ROWS])
    };
    assert_close(&y, &(0..3 * ROWS).map(dot).collect::<Vec<f64>>(), 1e-4);
    let info = matrix.describe();
    assert_eq!((info.rows, info.columns, info.has_bias, info.scheme.as_str()), (ROWS, COLUMNS, true, "fp16"));
    assert_eq!(Matrix::predict_bytes("fp16", ROWS, COLUMNS, true).unwrap().0, info.bytes);
}

/// With an identity Hessian the weighted error equals the error, by definition.
#[test]
fn a_hessian_reaches_the_library() {
    let hessian: Vec<f32> = (0..COLUMNS * COLUMNS).map(|at| if at % (COLUMNS + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let options = QuantizeOptions::new().scheme("nuq-2").hessian(&hessian).rounding(Rounding::Nearest).seed(7);
    let matrix = Matrix::quantize(&context(), options, &numbers(ROWS * COLUMNS, 1), ROWS, COLUMNS).unwrap();
    let info = matrix.describe();
    assert!(info.error > 0.0 && (info.proxy_error / info.error - 1.0).abs() < 1e-4);
}

#[test]
fn shared_inputs_give_the_same_numbers_as_one_by_one() {
    let context = context();
    let make = |rows: usize, seed: u32| {
        Matrix::quantize(&context, QuantizeOptions::new(), &numbers(rows * COLUMNS, seed), rows, COLUMNS).unwrap()
    };
    let (a, b) = (make(16, 1), make(40, 2));
    let x = numbers(2 * COLUMNS, 3);
    let (mut ya, mut yb) = (vec![0.0f32; 2 * 16], vec![0.0f32; 2 * 40]);
    Matrix::linear_shared(&[&a, &b], &x, &mut [&mut ya, &mut yb]).unwrap();
    let (mut za, mut zb) = (vec![0.0f32; 2 * 16], vec![0.0f32; 2 * 40]);
    a.linear(&x, &mut za).unwrap();
    b.linear(&x, &mut zb).unwrap();
    assert_eq!((&ya, &yb), (&za, &zb));
    // SAFETY: on a CPU the context's memory is the program's.
    unsafe { b.linear_device(x.as_ptr().cast(), 2, ya.as_mut_ptr().cast(), Dtype::Other(9)) }.unwrap_err();
    let result = Matrix::linear_shared(&[&a, &b], &x, &mut [&mut yb, &mut za]);
    assert_fails(result, Status::Argument, &["y[0] has 80", "expected 32"]);
    assert_fails(Matrix::linear_shared(&[&a, &b], &x, &mut [&mut ya]), Status::Argument, &["y has 1", "expected 2"]);
    assert_fails(Matrix::linear_shared::<f32>(&[], &x, &mut []), Status::Argument, &["matrices is empty"]);
}

#[test]
fn files_hold_matrices_by_name() {
    let context = context();
    let w = numbers(ROWS * COLUMNS, 1);
    let make = |scheme| Matrix::quantize(&context, QuantizeOptions::new().scheme(scheme), &w, ROWS, COLUMNS).unwrap();
    let (a, b) = (make("nuq-3"), make("vq-2"));
    let bytes = Matrix::save(&[("layers.0", &a), ("layers.1", &b)]).unwrap();
    let loaded = Matrix::load(&context, &bytes, "layers.1").unwrap();
    assert_eq!(loaded.describe(), b.describe());
    assert_eq!(loaded.dequantize(0..ROWS).unwrap(), b.dequantize(0..ROWS).unwrap());
    assert_eq!(Matrix::save(&[("layers.1", &loaded)]).unwrap(), Matrix::save(&[("layers.1", &b)]).unwrap());
    assert_fails(Matrix::load(&context, &bytes, "layers.2"), Status::Argument, &["layers.2"]);
    assert_fails(Matrix::load(&context, &bytes[..bytes.len() - 1], "layers.1"), Status::Format, &[]);
    assert_fails(Matrix::save(&[("x", &a), ("x", &b)]), Status::Argument, &["x"]);
    assert_fails(Matrix::save(&[("x\0", &a)]), Status::Argument, &["names", "byte 1"]);
    assert_fails(Matrix::save(&[]), Status::Argument, &["matrices is empty"]);
}

#[test]
fn wrong_shapes_are_refused() {
    let (matrix, context) = (quantized("nuq-4", 1), context());
    let (x, mut y) = (numbers(COLUMNS + 1, 1), vec![0.0f32; ROWS + 1]);
    assert_fails(matrix.linear(&x, &mut y[..ROWS]), Status::Argument, &["x has 129", "multiple of 128"]);
    assert_fails(matrix.linear(&x[..COLUMNS], &mut y), Status::Argument, &["y has 49", "expected 48"]);
    assert_fails(matrix.dequantize(40..49), Status::Argument, &["rows is 40..49", "0..48"]);
    let quantize = |options, rows, columns| Matrix::quantize(&context, options, &x[..COLUMNS], rows, columns);
    assert_fails(quantize(QuantizeOptions::new(), 2, 128), Status::Argument, &["w has 128", "expected 256"]);
    assert_fails(quantize(QuantizeOptions::new(), 4, 32), Status::Argument, &["columns", "32"]);
    let options = QuantizeOptions::new().bias(&[0.0; 3]);
    assert_fails(quantize(options, 1, 128), Status::Argument, &["bias has 3", "expected 1"]);
    let options = QuantizeOptions::new().hessian(&[0.0; 4]);
    assert_fails(quantize(options, 1, 128), Status::Argument, &["hessian has 4", "expected 16384"]);
}

#[test]
fn half_precision_inputs_and_weights_are_their_values() {
    let ones = [0x3f80u16; 64]; // of bfloat16
    let options = QuantizeOptions::new().scheme("fp16");
    let matrix = Matrix::quantize(&context(), options, Bf16::from_bits(&ones), 1, 64).unwrap();
    assert_close(&matrix.dequantize(0..1).unwrap(), &[1.0; 64], 1e-3);
    let mut y = [0u16];
    matrix.linear(Bf16::from_bits(&ones), Bf16::from_bits_mut(&mut y)).unwrap();
    assert_eq!(y, [0x4280]); // 64
}

#[test]
fn schemes_are_listed_with_their_bits() {
    assert!(kvq::schemes().contains(&"tcq-2.75".to_string()));
    assert_eq!(kvq::scheme_bits("tcq-2.75"), 2.75);
    assert_eq!(kvq::scheme_bits("none"), 0.0);
}
