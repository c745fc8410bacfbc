//! Layers that differ from their cache's others.
mod common;
use common::*;
use kvq::{Append, Attend, Cache, CacheOptions, DeviceAppend, DeviceExtend, Dtype, Extend};
use kvq::{LayerShape, Rope, Sequence, Status};

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

/// An ordinary layer, and a latent one: 64 channels of values, and 32 behind them that are rotated.
fn latent() -> Cache {
    let shape = LayerShape::new(1).kv_heads(1).key_dim(96).value_dim(64).values_are_key_prefix(true).scale(0.1);
    cache(&context(), "fp16", CacheOptions::new(2, 4, 2, 64).shapes([shape]))
}

/// Attention of four heads of the last queries to rows of 96 channels, of which the first 64 are the values.
fn attended(k: &[f32], q: &[f32]) -> Vec<f64> {
    let rotated = |row: &[f32], position: usize| -> Vec<f64> {
        let mut row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        for pair in 0..16 {
            let (sin, cos) = (position as f64 * 10000f64.powf(-(pair as f64) / 16.0)).sin_cos();
            let (a, b) = (row[64 + pair], row[80 + pair]);
            (row[64 + pair], row[80 + pair]) = (a * cos - b * sin, b * cos + a * sin);
        }
        row
    };
    let keys: Vec<_> = k.chunks(96).enumerate().map(|(position, row)| rotated(row, position)).collect();
    let first = keys.len() - q.len() / (4 * 96);
    let of_row = |(at, row): (usize, &[f32])| {
        let (position, mut total, mut output) = (first + at / 4, 0.0, vec![0.0; 64]);
        let query = rotated(row, position);
        for key in &keys[..=position] {
            let weight = (0.1 * key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>()).exp();
            total += weight;
            output.iter_mut().zip(key).for_each(|(sum, x)| *sum += weight * x);
        }
        output.into_iter().map(move |x| x / total)
    };
    q.chunks(96).enumerate().flat_map(of_row).collect()
}

#[test]
fn layers_with_a_window_free_what_no_query_sees() {
    let shapes = [LayerShape::new(1).sliding_window(-1)];
    let cache = cache(&context(), "int4", CacheOptions::new(2, 4, 2, 64).sliding_window(64).shapes(shapes));
    assert_eq!([0, 1].map(|layer| cache.describe_layer(layer).unwrap().sliding_window), [64, 0]);
    let mut sequence = Sequence::new(&cache).unwrap();
    let rows = numbers(50 * 2 * 64, 3);
    for _ in 0..10 {
        for layer in 0..2 {
            sequence.append(layer, &rows[..], &rows[..]).unwrap();
        }
    }
    assert_eq!([0, 1].map(|layer| sequence.slots(layer, 1).unwrap()), [500 - 384, 500]);
    let error = sequence.truncate(416).unwrap_err().to_string();
    assert!(error.contains("has freed tokens up to position 383"), "{error}");
}

#[test]
fn values_may_be_a_prefix_of_keys() {
    let cache = latent();
    let info = cache.describe_layer(1).unwrap();
    assert!(info.values_are_key_prefix && !cache.describe_layer(0).unwrap().values_are_key_prefix);
    assert_eq!((info.rotary_begin, info.rotary_dim), (64, 32));
    let (k, q) = (numbers(50 * 96, 1), numbers(3 * 4 * 96, 2));
    let expected = attended(&k, &q);
    let (before, last) = k.split_at(47 * 96);
    let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| Sequence::new(&cache).unwrap());
    a.append(1, before, &[]).unwrap();
    a.append_at(1, last, &[], &[47, 48, 49]).unwrap();
    let twice = [before, before].concat();
    cache.append(1, &mut [&mut b, &mut c], Append::new(&twice, &[]).token_counts(&[47, 47])).unwrap();
    cache.append(1, &mut [&mut b], Append::new(last, &[]).token_counts(&[3])).unwrap();
    for sequence in [&a, &b] {
        let mut output = vec![0.0f32; 3 * 4 * 64];
        cache.attend(1, &[sequence], Attend::new(&q, &mut output).query_counts(&[3])).unwrap();
        assert_close(&output, &expected, 1e-3);
    }
    let mut output = vec![0.0f32; 3 * 4 * 64];
    cache.extend(1, &mut [&mut c], Extend::new(last, &[], &q, &mut output).token_counts(&[3])).unwrap();
    assert_close(&output, &expected, 1e-3);
    let decoded = c.decode(1, 0, 0..50).unwrap();
    let prefix: Vec<f32> = decoded.k.chunks(96).flat_map(|row| row[..64].to_vec()).collect();
    assert_eq!((decoded.k.len(), decoded.v), (50 * 96, prefix));

    // On a CPU the context's memory is the program's.
    let (k, none, q) = (k.as_ptr().cast(), std::ptr::null(), q.as_ptr().cast());
    let mut output = vec![0.0f32; 3 * 4 * 64];
    let (mut e, mut f) = (d.fork().unwrap(), d.fork().unwrap());
    // SAFETY: the vectors have these sizes.
    unsafe {
        d.append_device(1, 50, k, none, Dtype::F32, None).unwrap();
        let batch = DeviceAppend::new(k, none, Dtype::F32).token_counts(&[50]);
        cache.append_device(1, &mut [&mut e], batch).unwrap();
        cache.append_device(1, &mut [&mut f], DeviceAppend::new(k, none, Dtype::F32).token_counts(&[47])).unwrap();
        let (last, output) = (last.as_ptr().cast(), output.as_mut_ptr().cast());
        let batch = DeviceExtend::new(last, none, Dtype::F32, q, Dtype::F32, output, Dtype::F32).token_counts(&[3]);
        cache.extend_device(1, &mut [&mut f], batch).unwrap();
    }
    assert_close(&output, &expected, 1e-3);
    let saved = a.save().unwrap();
    for sequence in [b, c, d, e, f, cache.load_sequence(&saved).unwrap()] {
        assert_eq!(sequence.save().unwrap(), saved);
    }
}

#[test]
fn values_are_given_exactly_where_keys_do_not_contain_them() {
    let cache = latent();
    let (x, mut y, mut sequence) = (numbers(512, 1), vec![0.0f32; 256], Sequence::new(&cache).unwrap());
    let (k, v, q) = (&x[..96], &x[..64], &x[..384]);
    let argument = Status::Argument;
    let given = ["v has 64 elements, must be empty: the layer's values are a prefix of its keys"];
    assert_fails(sequence.append(1, k, v), argument, &given);
    assert_fails(sequence.append_at(1, k, v, &[3]), argument, &given);
    assert_fails(cache.append(1, &mut [&mut sequence], Append::new(k, v)), argument, &given);
    assert_fails(cache.extend(1, &mut [&mut sequence], Extend::new(k, v, q, &mut y)), argument, &given);
    let (k, q) = (&x[..128], &x[..256]);
    let missing = ["v has 0 elements, expected 128: [n, kv_heads, value_dim]"];
    assert_fails(sequence.append(0, k, &[]), argument, &missing);
    let missing = ["v has 0 elements, expected 128: [1, 2, 64]"];
    assert_fails(cache.append(0, &mut [&mut sequence], Append::new(k, &[])), argument, &missing);
    assert_fails(cache.extend(0, &mut [&mut sequence], Extend::new(k, &[], q, &mut y)), argument, &missing);
    // SAFETY: the slice is longer; what is refused is not read.
    unsafe {
        let (k, none) = (x.as_ptr().cast(), std::ptr::null());
        assert_fails(sequence.append_device(1, 1, k, k, Dtype::F32, None), argument, &["v is given, must be NULL"]);
        assert_fails(sequence.append_device(0, 1, k, none, Dtype::F32, None), argument, &["v is NULL"]);
    }
    assert_eq!((sequence.length(0).unwrap(), sequence.length(1).unwrap()), (0, 0));

    let with = |shape: LayerShape| cache_of(CacheOptions::new(2, 4, 2, 64).shapes([shape]));
    let prefix = || LayerShape::new(1).key_dim(96).values_are_key_prefix(true);
    assert_eq!(with(prefix().inv_freq([0.0; 16])).unwrap().describe_layer(1).unwrap().rotary_dim, 32);
    assert_eq!(with(prefix().rotary_begin(80).inv_freq([0.0; 8])).unwrap().describe_layer(1).unwrap().rotary_dim, 16);
    let message = "shapes[0].inv_freq has 48 elements, expected 16: [rotary_dim / 2]";
    assert_fails(with(prefix().inv_freq([0.0; 48])), argument, &[message]);
    let message = "options->shapes[0].values_are_key_prefix is 1, but keys have 64 channels";
    assert_fails(with(prefix().key_dim(0)), argument, &[message]);
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
fn layers_may_read_the_pages_of_another_one() {
    let shared = || LayerShape::new(2).q_heads(6).pages_of_layer(1);
    let with = |shape: LayerShape| cache_of(CacheOptions::new(3, 4, 2, 64).shapes([shapes()[0].clone(), shape]));
    let cache = with(shared()).unwrap();
    assert_eq!([0, 1, 2].map(|layer| cache.describe_layer(layer).unwrap().pages_of_layer), [0, 1, 1]);
    let mut sequence = Sequence::new(&cache).unwrap();
    let (k, v, q) = (numbers(40 * 3 * 192, 1), numbers(40 * 3 * 128, 2), numbers(6 * 192, 3));
    sequence.append(1, &k, &v).unwrap();
    assert_eq!([0, 1, 2].map(|layer| sequence.length(layer).unwrap()), [0, 40, 40]);
    let outputs = [1, 2].map(|layer| {
        let mut output = vec![0.0f32; 6 * 128];
        cache.attend(layer, &[&sequence], Attend::new(&q, &mut output)).unwrap();
        output
    });
    assert_eq!(outputs[0], outputs[1]);
    let message = "layer is 2, which reads the pages of layer 1";
    assert_fails(sequence.append(2, &k, &v), Status::Argument, &[message]);
    let message = "options->shapes[1].kv_heads is 2, but layer 1, whose pages are read, has 3";
    assert_fails(with(shared().kv_heads(2)), Status::Argument, &[message]);
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
