//! Layers that differ from their cache's others.
mod common;
use common::*;
use kvq::{Append, Attend, Cache, CacheOptions, Extend, LayerShape, Rope, Sequence, Status};

/// Query heads, KV heads, channels of keys and channels of values.
const HEADS: [[usize; 4]; 3] = [[4, 2, 64, 64], [6, 3, 192, 128], [4, 2, 256, 256]];

fn shapes() -> Vec<LayerShape> {
    let wide = LayerShape::new(1).q_heads(6).kv_heads(3).key_dim(192).value_dim(128).rope_base(1e6);
    let plain = LayerShape::new(2).key_dim(256).value_dim(256).rope(Rope::None).scale(0.5).logit_softcap(20.0);
    vec![wide, plain]
}

fn mixed() -> Cache {
    cache(&context(), "fp16", CacheOptions::new(3, 4, 2, 64).shapes(shapes()))
}

/// Integers, which FP16 has all of.
fn integers(n: usize, seed: u32) -> Vec<f32> {
    numbers(n, seed).iter().map(|x| (9.0 * x).round()).collect()
}

/// Values `[tokens, kv_heads, value_dim]` as outputs have them where every query sees its token alone.
fn repeated(v: &[f32], [q_heads, kv_heads, _, value_dim]: [usize; 4]) -> Vec<f32> {
    v.chunks(value_dim).flat_map(|channels| channels.repeat(q_heads / kv_heads)).collect()
}

#[test]
fn layers_have_shapes_of_their_own() {
    let cache = mixed();
    for (layer, heads) in HEADS.into_iter().enumerate() {
        let [q_heads, kv_heads, key_dim, value_dim] = heads;
        let info = cache.describe_layer(layer).unwrap();
        assert_eq!([info.q_heads, info.kv_heads, info.key_dim, info.value_dim], heads);
        let (k, v) = (integers(2 * kv_heads * key_dim, 1), integers(2 * kv_heads * value_dim, 2));
        let q = numbers(2 * q_heads * key_dim, 3);
        let (one_k, one_v, one_q) = (&k[..k.len() / 2], &v[..v.len() / 2], &q[..q.len() / 2]);

        let [mut a, mut b] = [(); 2].map(|()| Sequence::new(&cache).unwrap());
        a.append(layer, one_k, one_v).unwrap();
        let mut output = vec![0.0f32; q_heads * value_dim];
        cache.attend(layer, &[&a], Attend::new(one_q, &mut output)).unwrap();
        assert_eq!(output, repeated(one_v, heads));
        let decoded = a.decode(layer, kv_heads - 1, 0..1).unwrap();
        assert_eq!((decoded.k.len(), decoded.v.as_slice()), (key_dim, &one_v[(kv_heads - 1) * value_dim..]));

        let [mut c, mut d] = [(); 2].map(|()| Sequence::new(&cache).unwrap());
        cache.append(layer, &mut [&mut b, &mut c], Append::new(&k, &v)).unwrap();
        assert_eq!(b.save().unwrap(), a.save().unwrap());
        let (mut output, mut lse) = (vec![0.0f32; 2 * q_heads * value_dim], vec![0.0f32; 2 * q_heads]);
        cache.attend(layer, &[&b, &c], Attend::new(&q, &mut output).lse(&mut lse)).unwrap();
        assert_eq!(output, repeated(&v, heads));
        let [mut e, mut other] = [Sequence::new(&cache).unwrap(), Sequence::new(&cache).unwrap()];
        let mut extended = vec![0.0f32; output.len()];
        let batch = Extend::new(&k, &v, &q, &mut extended).lse(&mut lse);
        cache.extend(layer, &mut [&mut d, &mut e], batch).unwrap();
        assert_eq!(extended, output);

        // Keys between other numbers.
        let (row, mut strided) = (kv_heads * key_dim, vec![f32::NAN; 2 * kv_heads * (key_dim + 3)]);
        for (at, channels) in k.chunks(key_dim).enumerate() {
            strided[at * (key_dim + 3)..][..key_dim].copy_from_slice(channels);
        }
        let batch = Append::new(&strided, &v).k_token_stride(row + 3 * kv_heads).k_head_stride(key_dim + 3);
        cache.append(layer, &mut [&mut other], batch.token_counts(&[2])).unwrap();
        assert_eq!(other.decode(layer, 0, 1..2).unwrap().v, &v[kv_heads * value_dim..][..value_dim]);
    }
}

#[test]
fn lengths_of_other_layers_are_refused() {
    let cache = mixed();
    let argument = Status::Argument;
    let (x, mut y, mut sequence) = (numbers(2048, 1), vec![0.0f32; 2048], Sequence::new(&cache).unwrap());
    let message = "k has 128 elements, expected a multiple of 576: [n, kv_heads, key_dim]";
    assert_fails(sequence.append(1, &x[..128], &x[..128]), argument, &[message]);
    let message = "v has 576 elements, expected 384: [n, kv_heads, value_dim]";
    assert_fails(sequence.append(1, &x[..576], &x[..576]), argument, &[message]);
    let result = cache.append(1, &mut [&mut sequence], Append::new(&x[..576], &x[..576]));
    assert_fails(result, argument, &["v has 576 elements, expected 384: [1, 3, 128]"]);
    assert_fails(sequence.append(3, &x[..128], &x[..128]), argument, &["layer is 3"]);
    sequence.append(1, &x[..576], &x[..384]).unwrap();

    let mut refused = |layer, q, output, message: &str| {
        let result = cache.attend(layer, &[&sequence], Attend::new(&x[..q], &mut y[..output]));
        assert_fails(result, argument, &[message]);
    };
    refused(1, 768, 768, "q has 768 elements, expected 1152: [1, 6, 192]");
    refused(1, 1152, 1152, "output has 1152 elements, expected 768: [1, 6, 128]");
    refused(3, 256, 256, "layer is 3");
    let batch = Attend::new(&x[..1152], &mut y[..768]).sinks(&[0.0; 4]);
    assert_fails(cache.attend(1, &[&sequence], batch), argument, &["sinks has 4 elements, expected 6: [q_heads]"]);
    let batch = Extend::new(&x[..576], &x[..384], &x[..1152], &mut y[..512]);
    let message = "output has 512 elements, expected 768: [1, 6, 128]";
    assert_fails(cache.extend(1, &mut [&mut sequence], batch), argument, &[message]);
    let result = sequence.decode_into(1, 0, 0..1, None, Some(&mut y[..192]), None);
    assert_fails(result, argument, &["v has 192 elements, expected 128: [slots, value_dim]"]);
    let result = sequence.decode_into(1, 0, 0..1, Some(&mut y[..128]), None, None);
    assert_fails(result, argument, &["k has 128 elements, expected 192: [slots, key_dim]"]);
    assert_eq!(sequence.length(1).unwrap(), 1);
}

#[test]
fn snapshots_load_into_the_same_shapes_alone() {
    let cache = mixed();
    let mut sequence = Sequence::new(&cache).unwrap();
    for (layer, [_, kv_heads, key_dim, value_dim]) in HEADS.into_iter().enumerate() {
        let (k, v) = (numbers(40 * kv_heads * key_dim, 1), numbers(40 * kv_heads * value_dim, 2));
        sequence.append(layer, &k, &v).unwrap();
    }
    let bytes = sequence.save().unwrap();
    assert_eq!(mixed().load_sequence(&bytes).unwrap().save().unwrap(), bytes);
    let usual = cache_of(CacheOptions::new(3, 4, 2, 64)).unwrap();
    assert_fails(usual.load_sequence(&bytes), Status::Mismatch, &["layers of different shapes"]);
    assert_fails(usual.load(&bytes, None), Status::Mismatch, &["layers of different shapes"]);
    let others = cache_of(CacheOptions::new(3, 4, 2, 64).shapes(&shapes()[..1])).unwrap();
    assert!(others.load_sequence(&bytes).is_err());
}

#[test]
fn frequencies_of_a_layer_are_checked_and_used() {
    let decoded = |options: CacheOptions| {
        let (k, cache) = (numbers(128, 1), cache_of(options).unwrap());
        let mut sequence = Sequence::new(&cache).unwrap();
        sequence.append_at(0, &k, &k, &[9]).unwrap();
        sequence.decode(0, 0, 0..1).unwrap().k
    };
    let options = || CacheOptions::new(1, 2, 2, 64);
    let with = |shape: LayerShape| options().shapes([shape]);
    let still = decoded(with(LayerShape::new(0).inv_freq([0.0; 32])));
    assert_eq!(still, decoded(options().rope(Rope::None)));
    assert_ne!(still, decoded(options()));

    let refused = |shape, message: &str| assert_fails(cache_of(with(shape)), Status::Argument, &[message]);
    let message = "shapes[0].inv_freq has 16 elements, expected 32: [rotary_dim / 2]";
    refused(LayerShape::new(0).inv_freq([0.0; 16]), message);
    refused(LayerShape::new(0).rotary_begin(48).inv_freq([0.0; 16]), "shapes[0].inv_freq has 16 elements, expected 8");
    refused(LayerShape::new(0).rotary_begin(100).inv_freq([]), "options->shapes[0].rotary_begin is 100");
    refused(LayerShape::new(0).key_dim(12), "options->shapes[0].key_dim is 12");
    refused(LayerShape::new(0).n_layers(2), "options->shapes[0].n_layers is 2");
}

fn cache_of(options: CacheOptions) -> kvq::Result<Cache> {
    Cache::new(&context(), options, None)
}
