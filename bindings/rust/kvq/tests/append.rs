//! Appending: batches, strides, element types, positions.
mod common;
use common::*;
use kvq::{Append, Bf16, Sequence, Status, F16};

#[test]
fn a_batch_stores_what_single_appends_store() {
    for policy in ["fp16", "int4"] {
        let cache = small(policy);
        let (k, v) = (numbers(60 * 32, 1), numbers(60 * 32, 2));
        let mut together: Vec<Sequence> = (0..3).map(|_| Sequence::new(&cache).unwrap()).collect();
        let mut batch: Vec<&mut Sequence> = together.iter_mut().collect();
        let counts = [5, 40, 15];
        let positions: Vec<i32> = counts.iter().flat_map(|&n| (0..n).map(|i| 2 * i + 1)).collect();
        cache.append(0, &mut batch, Append::new(&k, &v).token_counts(&counts).positions(&positions)).unwrap();
        let mut begin = 0;
        for (sequence, &n) in together.iter_mut().zip(&counts) {
            let (mut single, end) = (Sequence::new(&cache).unwrap(), begin + n as usize);
            let positions: Vec<i32> = (0..n).map(|i| 2 * i + 1).collect();
            single.append_at(0, &k[begin * 32..end * 32], &v[begin * 32..end * 32], &positions).unwrap();
            assert_eq!(single.save().unwrap(), sequence.save().unwrap());
            begin = end;
        }
    }
}

#[test]
fn more_sequences_than_fit_on_the_stack_go_in_one_batch() {
    let cache = small("fp16");
    let mut sequences: Vec<Sequence> = (0..40).map(|_| Sequence::new(&cache).unwrap()).collect();
    let (k, v) = (numbers(40 * 32, 1), numbers(40 * 32, 2));
    cache.append(1, &mut sequences.iter_mut().collect::<Vec<_>>(), Append::new(&k, &v)).unwrap();
    for (at, sequence) in sequences.iter().enumerate() {
        let decoded = sequence.decode(1, 1, 0..1).unwrap();
        assert_close(&decoded.v, &wide(&v[at * 32 + 16..at * 32 + 32]), 1e-3);
    }
}

#[test]
fn strides_take_keys_and_values_out_of_one_tensor() {
    let cache = small("fp16");
    let row = (4 + 2 * 2) * 16; // queries, keys and values of a token
    let qkv = numbers(6 * row, 7);
    let mut strided = Sequence::new(&cache).unwrap();
    let batch = Append::new(&qkv[64..], &qkv[96..]).token_counts(&[6]).k_token_stride(row).v_token_stride(row);
    cache.append(0, &mut [&mut strided], batch).unwrap();
    let gather = |begin: usize| -> Vec<f32> {
        (0..6).flat_map(|token| qkv[token * row + begin..token * row + begin + 32].to_vec()).collect()
    };
    let mut dense = Sequence::new(&cache).unwrap();
    dense.append(0, &gather(64), &gather(96)).unwrap();
    assert_eq!(strided.save().unwrap(), dense.save().unwrap());

    let mut heads_first = Sequence::new(&cache).unwrap();
    let transposed: Vec<f32> = (0..2)
        .flat_map(|head| (0..6).flat_map(move |token| (0..16).map(move |c| (head, token, c))))
        .map(|(head, token, c)| qkv[token * row + 64 + head * 16 + c])
        .collect();
    let batch = Append::new(&transposed, &transposed)
        .token_counts(&[6])
        .k_token_stride(16)
        .k_head_stride(96)
        .v_token_stride(16)
        .v_head_stride(96);
    cache.append(0, &mut [&mut heads_first], batch).unwrap();
    let (a, b) = (heads_first.decode(0, 1, 0..6).unwrap(), dense.decode(0, 1, 0..6).unwrap());
    assert_eq!((&a.k, &a.v), (&b.k, &b.k));
}

#[test]
fn half_precision_numbers_are_stored_as_their_values() {
    let cache = small("fp16");
    let bits: Vec<u16> = numbers(3 * 32, 1).into_iter().map(bf16).collect();
    let wide: Vec<f32> = bits.iter().map(|&bits| from_bf16(bits)).collect();
    let (mut narrow, mut full) = (Sequence::new(&cache).unwrap(), Sequence::new(&cache).unwrap());
    narrow.append(0, Bf16::from_bits(&bits), Bf16::from_bits(&bits)).unwrap();
    full.append(0, &wide, &wide).unwrap();
    assert_eq!(narrow.save().unwrap(), full.save().unwrap());

    let mut halves = Sequence::new(&cache).unwrap();
    halves.append(0, &[F16(0x3c00); 32], &[F16(0xc000); 32]).unwrap(); // 1 and -2
    let decoded = halves.decode(0, 0, 0..1).unwrap();
    assert_eq!((decoded.k, decoded.v), (vec![1.0; 16], vec![-2.0; 16]));
}

#[test]
fn a_sequence_of_another_cache_is_refused() {
    let (cache, other) = (small("fp16"), small("fp16"));
    let (mut own, mut foreign) = (Sequence::new(&cache).unwrap(), Sequence::new(&other).unwrap());
    let x = numbers(64, 1);
    let result = cache.append(0, &mut [&mut own, &mut foreign], Append::new(&x, &x));
    assert_fails(result, Status::Argument, &["sequences[1]", "another cache"]);
    assert_eq!(own.length(0).unwrap(), 0);
    let mut output = vec![0.0f32; 64];
    let result = cache.attend(0, &[&foreign], kvq::Attend::new(&x, &mut output));
    assert_fails(result, Status::Argument, &["sequences[0]", "another cache"]);
}
