//! Attention options reach the library, and results return to the right place.
mod common;
use common::*;
use kvq::{Append, Attend, Bf16, Cache, CacheOptions, DeviceAppend, DeviceAttend, DeviceExtend, Dtype, Extend};
use kvq::{Rope, Sequence, Status, F16};

/// The first chunks of sequences: 40 tokens and 3.
#[test]
fn first_chunks_are_attended_to_as_given_and_stored_as_appended() {
    let counts = [40, 3];
    let (k, v, q) = (numbers(43 * 32, 1), numbers(43 * 32, 2), numbers(43 * 64, 3));
    let (exact, coarse) = (small("fp16"), small("int2"));
    let new = |cache: &Cache| (Sequence::new(cache).unwrap(), Sequence::new(cache).unwrap());

    let (mut a, mut b) = new(&exact);
    exact.append(1, &mut [&mut a, &mut b], Append::new(&k, &v).token_counts(&counts)).unwrap();
    let (sinks, mut expected, mut expected_lse) = ([0.5, -1.0, 0.0, 2.0], vec![0.0f32; 43 * 64], vec![0.0f32; 43 * 4]);
    let batch = Attend::new(&q, &mut expected).query_counts(&counts).sinks(&sinks).lse(&mut expected_lse);
    exact.attend(1, &[&a, &b], batch.sliding_window(20).logit_softcap(3.0)).unwrap();

    let (mut a, mut b) = new(&coarse);
    let (mut output, mut lse) = (vec![0.0f32; 43 * 64], vec![0.0f32; 43 * 4]);
    let batch = Extend::new(&k, &v, &q, &mut output).token_counts(&counts).sinks(&sinks).lse(&mut lse);
    coarse.extend(1, &mut [&mut a, &mut b], batch.sliding_window(20).logit_softcap(3.0)).unwrap();
    assert_eq!((output, lse), (expected, expected_lse));

    let (mut c, mut d) = new(&coarse);
    coarse.append(1, &mut [&mut c, &mut d], Append::new(&k, &v).token_counts(&counts)).unwrap();
    assert_eq!((a.save().unwrap(), b.save().unwrap()), (c.save().unwrap(), d.save().unwrap()));
}

/// Zero queries weigh all visible tokens equally, so outputs are means that identify them.
#[test]
fn counts_positions_window_sinks_and_log_sums_reach_the_library() {
    let cache = small("fp16");
    let value =
        |sequence: usize, position: i32, kv_head: usize| (100 * kv_head + 30 * sequence) as f32 + position as f32;
    let (mut a, mut b) = (Sequence::new(&cache).unwrap(), Sequence::new(&cache).unwrap());
    let appended = [0, 1, 2, 3, 4, 5, 2, 3, 5, 7];
    let row =
        |(at, &position): (usize, &i32)| (0..32).map(move |c| value(at / 6, position, c / 16)).collect::<Vec<f32>>();
    let v: Vec<f32> = appended.iter().enumerate().flat_map(row).collect();
    let k = vec![0.0f32; v.len()];
    let batch = Append::new(&k, &v).token_counts(&[6, 4]).positions(&appended);
    cache.append(0, &mut [&mut a, &mut b], batch).unwrap();
    let (counts, positions, sinks) = ([2, 1], [1, 5, 6], [0.5f32, -1.0, f32::NEG_INFINITY, 2.0]);
    let (q, mut output, mut lse) = ([0.0f32; 3 * 64], [0.0f32; 3 * 64], [0.0f32; 3 * 4]);
    let batch = Attend::new(&q, &mut output).query_counts(&counts).query_positions(&positions);
    cache.attend(0, &[&a, &b], batch.sliding_window(3).sinks(&sinks).lse(&mut lse)).unwrap();
    let seen: [(usize, &[i32]); 3] = [(0, &[0, 1]), (0, &[3, 4, 5]), (1, &[5])];
    for at in 0..12 {
        let ((sequence, seen), head) = (seen[at / 4], at % 4);
        let sum = f64::from(sinks[head]).exp() + seen.len() as f64;
        let mean = seen.iter().map(|&position| f64::from(value(sequence, position, head / 2)) / sum).sum::<f64>();
        assert_close(&output[at * 16..at * 16 + 16], &[mean; 16], 1e-3 * mean.max(1.0));
        assert_close(&lse[at..at + 1], &[sum.ln()], 1e-4);
    }
    assert_eq!(b.decode(0, 1, 0..4).unwrap().positions, [2, 3, 5, 7]);
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
fn half_precision_goes_in_and_comes_out() {
    let cache = small("fp16");
    let mut sequence = Sequence::new(&cache).unwrap();
    let bits = |of: [u16; 4], n: usize| -> Vec<u16> { of.into_iter().cycle().take(n).collect() };
    let (f16, bf16) = ([0x3c00, 0xb800, 0x3400, 0x3e00], [0x3f80, 0xbf00, 0x3e80, 0x3fc0]); // 1, -0.5, 0.25, 1.5
    let (narrow, wide) = (bits(f16, 32), bits(bf16, 32));
    sequence.append(0, F16::from_bits(&narrow), F16::from_bits(&narrow)).unwrap();
    sequence.append(1, Bf16::from_bits(&wide), Bf16::from_bits(&wide)).unwrap();
    let (mut output, mut other) = (vec![0u16; 64], vec![F16::default(); 64]);
    cache.attend(0, &[&sequence], Attend::new(&[0.0f32; 64], Bf16::from_bits_mut(&mut output))).unwrap();
    cache.attend(1, &[&sequence], Attend::new(&[Bf16::default(); 64], &mut other)).unwrap();
    assert_eq!((output, F16::to_bits(&other)), (bits(bf16, 64), bits(f16, 64).as_slice()));
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

/// Heads of 16 channels as M-RoPE turns them: pair j, channels j and j + 8, by the position of stream `streams[j]`.
fn turned(x: &[f32], heads: usize, places: &[i32], streams: [usize; 8]) -> Vec<f32> {
    let mut turned = x.to_vec();
    for (at, head) in turned.chunks_mut(16).enumerate() {
        for (j, stream) in streams.into_iter().enumerate() {
            let angle = f64::from(places[at / heads * 3 + stream]) * 10000f64.powf(-(j as f64) / 8.0);
            let (a, b) = (f64::from(head[j]), f64::from(head[j + 8]));
            head[j] = (a * angle.cos() - b * angle.sin()) as f32;
            head[j + 8] = (b * angle.cos() + a * angle.sin()) as f32;
        }
    }
    turned
}

#[test]
fn pairs_turn_by_the_positions_of_their_section() {
    let options = || CacheOptions::new(1, 4, 2, 16);
    let plain = cache(&context(), "fp16", options().rope(Rope::None));
    let places: Vec<i32> = (0..20 * 3).map(|at| at * 37 % 101).collect();
    let (k, v, q) = (numbers(20 * 32, 1), numbers(20 * 32, 2), numbers(20 * 64, 3));
    for (interleaved, sections, streams) in
        [(false, [2, 3, 3], [0, 0, 1, 1, 1, 2, 2, 2]), (true, [4, 2, 2], [0, 1, 2, 0, 1, 2, 0, 0])]
    {
        let sectioned = cache(&context(), "fp16", options().mrope_section(sections).mrope_interleaved(interleaved));
        let (keys, queries) = (turned(&k, 2, &places, streams), turned(&q, 4, &places, streams));
        let (mut one, mut expected) = (Sequence::new(&sectioned).unwrap(), Sequence::new(&plain).unwrap());
        let mut by_address = Sequence::new(&sectioned).unwrap();
        let (dtype, mut output, mut from) = (Dtype::F32, vec![0.0f32; 5 * 64], vec![0.0f32; 5 * 64]);
        let mut to = vec![0.0f32; 5 * 64];
        let close = |found: &[f32], expected: &[f32]| {
            assert_close(found, &expected.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), 2e-3);
        };

        let batch = Append::new(&k[..15 * 32], &v[..15 * 32]).token_counts(&[15]);
        sectioned.append(0, &mut [&mut one], batch.rope_positions(&places[..45])).unwrap();
        plain
            .append(0, &mut [&mut expected], Append::new(&keys[..15 * 32], &v[..15 * 32]).token_counts(&[15]))
            .unwrap();
        let batch = DeviceAppend::new(k.as_ptr().cast(), v.as_ptr().cast(), dtype).token_counts(&[15]);
        // SAFETY: the vectors have these sizes.
        unsafe { sectioned.append_device(0, &mut [&mut by_address], batch.rope_positions(places.as_ptr())) }.unwrap();
        assert_eq!(one.save().unwrap(), by_address.save().unwrap());

        let batch = Attend::new(&q[10 * 64..15 * 64], &mut output).query_counts(&[5]);
        sectioned.attend(0, &[&one], batch.rope_positions(&places[30..45])).unwrap();
        plain.attend(0, &[&expected], Attend::new(&queries[10 * 64..15 * 64], &mut from).query_counts(&[5])).unwrap();
        close(&output, &from);
        let batch = DeviceAttend::new(q[10 * 64..].as_ptr().cast(), dtype, to.as_mut_ptr().cast(), dtype);
        let batch = batch.query_counts(&[5]).rope_positions(places[30..].as_ptr());
        // SAFETY: the vectors have these sizes.
        unsafe { sectioned.attend_device(0, &[&one], batch) }.unwrap();
        assert_eq!(to, output);

        let (new_k, new_v, new_q) = (&k[15 * 32..], &v[15 * 32..], &q[15 * 64..]);
        let batch = Extend::new(new_k, new_v, new_q, &mut output).token_counts(&[5]).rope_positions(&places[45..]);
        sectioned.extend(0, &mut [&mut one], batch).unwrap();
        let batch = Extend::new(&keys[15 * 32..], new_v, &queries[15 * 64..], &mut from).token_counts(&[5]);
        plain.extend(0, &mut [&mut expected], batch).unwrap();
        close(&output, &from);
        let (k, v, q) = (new_k.as_ptr().cast(), new_v.as_ptr().cast(), new_q.as_ptr().cast());
        let batch = DeviceExtend::new(k, v, dtype, q, dtype, to.as_mut_ptr().cast(), dtype);
        let batch = batch.token_counts(&[5]).rope_positions(places[45..].as_ptr());
        // SAFETY: the vectors have these sizes.
        unsafe { sectioned.extend_device(0, &mut [&mut by_address], batch) }.unwrap();
        assert_eq!(to, output);
        assert_eq!(one.save().unwrap(), by_address.save().unwrap());
    }
}

#[test]
fn sections_and_their_positions_are_checked() {
    let argument = Status::Argument;
    let sectioned = cache(&context(), "fp16", CacheOptions::new(1, 4, 2, 16).mrope_section([2, 3, 3]));
    let mut sequence = filled(&sectioned, 2, 1);
    let (x, q, mut output) = (numbers(2 * 32, 1), numbers(2 * 64, 2), vec![0.0f32; 2 * 64]);
    let refused = "rope_positions has 5 elements, expected 6";
    let batch = Append::new(&x, &x).token_counts(&[2]).rope_positions(&[0; 5]);
    assert_fails(sectioned.append(0, &mut [&mut sequence], batch), argument, &[refused, "[tokens, 3]"]);
    let batch = Attend::new(&q, &mut output).query_counts(&[2]).rope_positions(&[0; 5]);
    assert_fails(sectioned.attend(0, &[&sequence], batch), argument, &[refused, "[queries, 3]"]);
    let batch = Extend::new(&x, &x, &q, &mut output).token_counts(&[2]).rope_positions(&[0; 5]);
    assert_fails(sectioned.extend(0, &mut [&mut sequence], batch), argument, &[refused, "[tokens, 3]"]);
    assert_eq!(sequence.length(0).unwrap(), 2);

    let few = Cache::new(&context(), CacheOptions::new(1, 4, 2, 16).mrope_section([2, 3, 2]), None);
    assert_fails(few, argument, &["mrope_section adds up to 7 pairs"]);
    let mut other = filled(&small("fp16"), 2, 1);
    let batch = Append::new(&x, &x).token_counts(&[2]).rope_positions(&[0; 6]);
    let cache = other.cache().clone();
    assert_fails(cache.append(0, &mut [&mut other], batch), argument, &["without options->mrope_section"]);
}
