//! Attention against its definition in float64, with everything that can be asked for.
mod common;
use common::*;
use kvq::{Attend, Bf16, Cache, CacheOptions, Rope, Sequence, F16};

/// The rotation of kvq.h in float64: channels (j, j + dim / 2), frequencies base^(-2j / dim).
fn rotated(q: &[f64], position: i32) -> Vec<f64> {
    let half = q.len() / 2;
    let mut out = q.to_vec();
    for j in 0..half {
        let (sin, cos) = (f64::from(position) * 10000f64.powf(-(j as f64) / half as f64)).sin_cos();
        out[j] = q[j] * cos - q[j + half] * sin;
        out[j + half] = q[j] * sin + q[j + half] * cos;
    }
    out
}

#[test]
fn a_rotated_query_attends_as_the_definition_says() {
    for policy in ["fp16", "int8", "int4+hadamard", "int2"] {
        let cache = cache(&context(), policy, CacheOptions::new(2, 4, 2, 16));
        let sequence = filled(&cache, 75, 3);
        let (q, mut output) = (numbers(64, 9), vec![0.0f32; 64]);
        cache.attend(1, &[&sequence], Attend::new(&q, &mut output)).unwrap();
        for head in 0..4 {
            let row = head * 16..(head + 1) * 16;
            let query = Query { position: 74, ..Query::default() };
            let (expected, _) = reference(&sequence, 1, head, &rotated(&wide(&q[row.clone()]), 74), query);
            assert_close(&output[row], &expected, 1e-5);
        }
    }
}

#[test]
fn counts_positions_window_cap_sinks_and_log_sums_are_those_of_the_definition() {
    let cache = small("int8");
    let (a, b) = (filled(&cache, 40, 1), filled(&cache, 70, 2));
    let counts = [2, 3];
    let positions = [5, 39, 0, 33, 69];
    let (q, sinks) = (numbers(5 * 64, 4), [0.5f32, -1.0, f32::NEG_INFINITY, 2.0]);
    let (mut output, mut lse) = (vec![0.0f32; 5 * 64], vec![0.0f32; 5 * 4]);
    let batch = Attend::new(&q, &mut output)
        .query_counts(&counts)
        .query_positions(&positions)
        .sliding_window(8)
        .logit_softcap(0.75)
        .sinks(&sinks)
        .lse(&mut lse);
    cache.attend(0, &[&a, &b], batch).unwrap();
    for (row, &position) in positions.iter().enumerate() {
        let sequence = if row < 2 { &a } else { &b };
        for head in 0..4 {
            let range = (row * 4 + head) * 16..(row * 4 + head + 1) * 16;
            let query = Query { position, window: 8, softcap: 0.75, sink: Some(f64::from(sinks[head])) };
            let (expected, sum) = reference(sequence, 0, head, &wide(&q[range.clone()]), query);
            assert_close(&output[range], &expected, 1e-5);
            assert_close(&lse[row * 4 + head..row * 4 + head + 1], &[sum], 1e-5);
        }
    }
}

#[test]
fn queries_without_positions_are_the_last_tokens() {
    let cache = small("fp16");
    let sequence = filled(&cache, 20, 8);
    let q = numbers(3 * 64, 5);
    let (mut implied, mut explicit) = (vec![0.0f32; 3 * 64], vec![0.0f32; 3 * 64]);
    cache.attend(0, &[&sequence], Attend::new(&q, &mut implied).query_counts(&[3])).unwrap();
    let batch = Attend::new(&q, &mut explicit).query_counts(&[3]).query_positions(&[17, 18, 19]);
    cache.attend(0, &[&sequence], batch).unwrap();
    assert_eq!(implied, explicit);
}

#[test]
fn strides_reach_queries_between_other_numbers_and_leave_those_alone() {
    let cache = small("fp16");
    let sequence = filled(&cache, 20, 8);
    let dense = numbers(2 * 64, 5);
    let mut expected = vec![0.0f32; 2 * 64];
    cache.attend(0, &[&sequence], Attend::new(&dense, &mut expected).query_counts(&[2])).unwrap();

    let (token, head) = (4 * 20 + 7, 20); // heads of 16 channels in rows of 20, and 7 more
    let mut q = vec![f32::NAN; token + 3 * head + 16];
    for (row, channels) in dense.chunks(16).enumerate() {
        let at = row / 4 * token + row % 4 * head;
        q[at..at + 16].copy_from_slice(channels);
    }
    let mut output = vec![7.0f32; q.len()];
    let batch = Attend::new(&q, &mut output)
        .query_counts(&[2])
        .q_token_stride(token)
        .q_head_stride(head)
        .output_token_stride(token)
        .output_head_stride(head);
    cache.attend(0, &[&sequence], batch).unwrap();
    for row in 0..8 {
        let at = row / 4 * token + row % 4 * head;
        assert_eq!(output[at..at + 16], expected[row * 16..(row + 1) * 16]);
    }
    assert_eq!(output.iter().filter(|&&x| x == 7.0).count(), output.len() - 2 * 64);
}

#[test]
fn parts_of_a_context_merge_by_their_log_sums() {
    let cache = small("fp16");
    let sequence = || Sequence::new(&cache).unwrap();
    let (mut whole, mut first, mut second) = (sequence(), sequence(), sequence());
    let (k, v) = (numbers(50 * 32, 1), numbers(50 * 32, 2));
    whole.append(0, &k, &v).unwrap();
    first.append(0, &k[..30 * 32], &v[..30 * 32]).unwrap();
    let positions: Vec<i32> = (30..50).collect();
    second.append_at(0, &k[30 * 32..], &v[30 * 32..], &positions).unwrap();

    let (q, sinks) = (numbers(64, 3), [0.25f32; 4]);
    let attend = |sequence: &Sequence, sinks: &[f32]| {
        let (mut output, mut lse) = (vec![0.0f32; 64], vec![0.0f32; 4]);
        let batch = Attend::new(&q, &mut output).query_positions(&[49]).lse(&mut lse).sinks(sinks);
        cache.attend(0, &[sequence], batch).unwrap();
        (output, lse)
    };
    let none = [f32::NEG_INFINITY; 4];
    let (output, lse) = attend(&whole, &sinks);
    let parts = [attend(&first, &sinks), attend(&second, &none)]; // one part alone has the sinks
    for head in 0..4 {
        let sum = parts.iter().map(|part| f64::from(part.1[head]).exp()).sum::<f64>().ln();
        assert_close(&lse[head..head + 1], &[sum], 1e-5);
        let merged: Vec<f64> = (head * 16..(head + 1) * 16)
            .map(|at| parts.iter().map(|p| (f64::from(p.1[head]) - sum).exp() * f64::from(p.0[at])).sum())
            .collect();
        assert_close(&output[head * 16..(head + 1) * 16], &merged, 1e-5);
    }
}

#[test]
fn half_precision_queries_and_outputs_are_their_bits() {
    let cache = small("fp16");
    let sequence = filled(&cache, 20, 8);
    let bits: Vec<u16> = numbers(64, 5).into_iter().map(bf16).collect();
    let exact: Vec<f32> = bits.iter().map(|&bits| from_bf16(bits)).collect();
    let mut expected = vec![0.0f32; 64];
    cache.attend(0, &[&sequence], Attend::new(&exact, &mut expected)).unwrap();

    let mut narrow = vec![0u16; 64];
    let batch = Attend::new(Bf16::from_bits(&bits), Bf16::from_bits_mut(&mut narrow));
    cache.attend(0, &[&sequence], batch).unwrap();
    assert_eq!(narrow, expected.iter().map(|&x| bf16(x)).collect::<Vec<_>>());

    let mut halves = vec![F16::default(); 64];
    cache.attend(0, &[&sequence], Attend::new(&exact, &mut halves)).unwrap();
    let widened: Vec<f32> = F16::to_bits(&halves).iter().map(|&bits| from_f16(bits)).collect();
    assert_close(&widened, &wide(&expected), 1e-3);
}

/// A normal or zero binary16 number by its definition.
fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size =
        if exponent == 0 { fraction * 2f32.powi(-24) } else { (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15) };
    if sign == 1 {
        -size
    } else {
        size
    }
}

#[test]
fn frequencies_of_ones_own_rotate() {
    let options = || CacheOptions::new(1, 2, 1, 16);
    let still = cache(&context(), "fp16", options().inv_freq([0.0; 8]));
    let unrotated = cache(&context(), "fp16", options().rope(Rope::None));
    assert_eq!((still.describe().rotary_dim, unrotated.describe().rotary_dim), (16, 0));
    let attend = |cache: &Cache| {
        let (sequence, mut output) = (filled(cache, 30, 1), vec![0.0f32; 32]);
        cache.attend(0, &[&sequence], Attend::new(&numbers(32, 2), &mut output)).unwrap();
        output
    };
    assert_eq!(attend(&still), attend(&unrotated));
    assert_ne!(attend(&still), attend(&cache(&context(), "fp16", options())));
}
