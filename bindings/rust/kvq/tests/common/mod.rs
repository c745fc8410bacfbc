//! What tests share: contexts, numbers, and attention in float64 over decoded pages.
#![allow(dead_code)] // every test file uses a part of it
use kvq::{Cache, CacheOptions, Context, ContextOptions, Policy, Rope, Sequence, Status};
use std::path::PathBuf;

/// A context whose products are those of FP32, whatever the machine has.
pub fn context() -> Context {
    Context::new(ContextOptions::new().cpu_isa("baseline")).unwrap()
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

/// What a query is attended with beside the defaults.
#[derive(Clone, Copy, Default)]
pub struct Query {
    pub position: i32,
    pub window: i32,
    pub softcap: f64,
    pub sink: Option<f64>,
}

/// One query head by the definition: the output, and the log-sum-exp of the logits.
pub fn reference(sequence: &Sequence, layer: usize, head: usize, q: &[f64], query: Query) -> (Vec<f64>, f64) {
    let info = sequence.cache().describe();
    let kv_head = head / (info.q_heads / info.kv_heads);
    let slots = sequence.slots(layer, kv_head).unwrap();
    let pages = sequence.decode(layer, kv_head, 0..slots).unwrap();
    let mut weights = query.sink.map_or(0.0, f64::exp);
    let mut sum = vec![0.0; info.head_dim];
    for (at, &position) in pages.positions.iter().enumerate() {
        if position > query.position || query.window > 0 && position <= query.position - query.window {
            continue;
        }
        let row = at * info.head_dim..(at + 1) * info.head_dim;
        let dot: f64 = q.iter().zip(&pages.k[row.clone()]).map(|(q, &k)| q * f64::from(k)).sum();
        let mut logit = dot * f64::from(info.scale);
        if query.softcap > 0.0 {
            logit = query.softcap * (logit / query.softcap).tanh();
        }
        let weight = logit.exp();
        weights += weight;
        sum.iter_mut().zip(&pages.v[row]).for_each(|(sum, &v)| *sum += weight * f64::from(v));
    }
    (sum.iter().map(|sum| sum / weights).collect(), weights.ln())
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
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

pub fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
