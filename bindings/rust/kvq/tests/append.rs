//! Appending: batches and strides.
mod common;
use common::*;
use kvq::{Append, Attend, Sequence, Status};

#[test]
fn more_sequences_than_fit_on_the_stack_go_in_one_batch() {
    let cache = small("fp16");
    let mut sequences: Vec<Sequence> = (0..40).map(|_| Sequence::new(&cache).unwrap()).collect();
    let (k, v) = (numbers(40 * 32, 1), numbers(40 * 32, 2));
    cache.append(1, &mut sequences.iter_mut().collect::<Vec<_>>(), Append::new(&k, &v)).unwrap();
    for (at, sequence) in sequences.iter().enumerate() {
        let mut single = Sequence::new(&cache).unwrap();
        single.append(1, &k[at * 32..at * 32 + 32], &v[at * 32..at * 32 + 32]).unwrap();
        assert_eq!(single.save().unwrap(), sequence.save().unwrap());
    }
}

#[test]
fn strides_take_keys_and_values_out_of_one_tensor() {
    let cache = small("int4");
    let row = 64 + 32 + 32; // queries, keys and values of a token
    let qkv = numbers(6 * row, 3);
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
    let transposed = |x: &[f32]| -> Vec<f32> {
        (0..2).flat_map(|head| (0..6).flat_map(move |token| x[token * 32 + head * 16..][..16].to_vec())).collect()
    };
    let (k, v) = (transposed(&gather(64)), transposed(&gather(96)));
    let batch = Append::new(&k, &v).k_token_stride(16).k_head_stride(96).v_token_stride(16).v_head_stride(96);
    cache.append(0, &mut [&mut heads_first], batch.token_counts(&[6])).unwrap();
    assert_eq!(heads_first.save().unwrap(), dense.save().unwrap());
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
    let result = cache.attend(0, &[&foreign], Attend::new(&x, &mut output));
    assert_fails(result, Status::Argument, &["sequences[0]", "another cache"]);
}
