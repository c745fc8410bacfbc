//! Contexts, caches and numbers shared by the tests.
#![allow(dead_code)] // every test file uses a part of it
use kvq::{Cache, CacheOptions, Context, ContextOptions, Policy, Rope, Sequence, Status};
use std::path::PathBuf;

/// Options for products that are those of FP32, whatever the machine has: the last instruction set is the portable one.
pub fn exact() -> ContextOptions {
    ContextOptions::new().cpu_isa(kvq::cpu_isas().pop().unwrap())
}

pub fn context() -> Context {
    Context::new(exact()).unwrap()
}

pub fn cache(context: &Context, policy: &str, options: CacheOptions) -> Cache {
    Cache::new(context, options, &Policy::load(context, policy).unwrap()).unwrap()
}

/// Two layers, four query heads on two KV heads of 16 channels, not rotated.
pub fn small(policy: &str) -> Cache {
    cache(&context(), policy, CacheOptions::new(2, 4, 2, 16).rope(Rope::None))
}

/// Numbers in [-1, 1) that depend on the seed alone.
pub fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / 8388608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A sequence with `n` tokens in every layer.
pub fn filled(cache: &Cache, n: usize, seed: u32) -> Sequence {
    let mut sequence = Sequence::new(cache).unwrap();
    extend(&mut sequence, n, seed);
    sequence
}

pub fn extend(sequence: &mut Sequence, n: usize, seed: u32) {
    let info = sequence.cache().describe().clone();
    for layer in 0..info.n_layers {
        let size = n * info.kv_heads * info.head_dim;
        let (k, v) = (numbers(size, seed + 2 * layer as u32), numbers(size, seed + 2 * layer as u32 + 1));
        sequence.append(layer, &k, &v).unwrap();
    }
}

#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f64], limit: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(found) - expected).abs();
        assert!(difference <= limit, "element {at} is {found}, expected {expected} within {limit}");
    }
}

/// A failure with this status whose message has every one of these words.
#[track_caller]
pub fn assert_fails<T>(result: kvq::Result<T>, status: Status, words: &[&str]) {
    let error = result.err().expect("it should have failed");
    assert_eq!(error.status(), status, "{error}");
    for word in words {
        assert!(error.message().contains(word), "\"{word}\" is not in \"{}\"", error.message());
    }
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}
