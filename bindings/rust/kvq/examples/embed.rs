//! Minimal embedding: one attention layer of an engine decodes on a cache compressed to about five bits per scalar.
//! Prints the same as `samples/c/embed.c`.
use kvq::{Attend, Cache, CacheOptions, Context, ContextOptions, Policy, Sequence};

const LAYERS: usize = 1;
const Q_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const TOKENS: usize = 1000;

/// Stands in for the engine's projections: numbers in [-1, 1).
fn fill(x: &mut [f32], state: &mut u32) {
    for it in x {
        *state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        *it = (*state >> 8) as f32 / 8388608.0 - 1.0;
    }
}

/// Hash of the attention outputs' bits.
fn checksum(sum: u32, x: &[f32]) -> u32 {
    x.iter().fold(sum, |sum, x| (sum ^ x.to_bits()).wrapping_mul(16777619))
}

fn main() -> kvq::Result<()> {
    let context = Context::new(ContextOptions::new())?;
    let policy = Policy::load(&context, "int4+hadamard")?; // or a YAML policy
    let cache = Cache::new(&context, CacheOptions::new(LAYERS, Q_HEADS, KV_HEADS, HEAD_DIM), &policy)?;
    let mut sequence = Sequence::new(&cache)?;

    let (mut state, mut sum) = (1, 2166136261);
    let (mut q, mut output) = ([0.0f32; Q_HEADS * HEAD_DIM], [0.0f32; Q_HEADS * HEAD_DIM]);
    let (mut k, mut v) = ([0.0f32; KV_HEADS * HEAD_DIM], [0.0f32; KV_HEADS * HEAD_DIM]);
    for _ in 0..TOKENS {
        fill(&mut q, &mut state); // before RoPE: the library rotates queries and keys
        fill(&mut k, &mut state);
        fill(&mut v, &mut state);
        sequence.append(0, &k, &v)?;
        cache.attend(0, &[&sequence], Attend::new(&q, &mut output))?;
        sum = checksum(sum, &output);
    }

    let usage = sequence.usage()?;
    println!(
        "{TOKENS} tokens at {:.2} bits per scalar: {} bytes instead of {}, checksum {sum:08x}",
        usage.bits_per_scalar, usage.total_bytes, usage.plain_fp16_bytes
    );
    Ok(())
}
