//! Every failure says what was wrong, before the library could read or write too much.
mod common;
use common::*;
use kvq::{
    Append, Attend, Cache, CacheOptions, Context, ContextOptions, Device, Dtype, Error, Extend, Matrix, Policy,
    QuantizeOptions, Rope, Scope, Sequence, Status,
};

#[test]
fn slices_of_wrong_lengths_are_named_with_both_lengths() {
    let cache = small("fp16");
    let mut sequence = filled(&cache, 10, 1);
    let x = numbers(1024, 1);
    let argument = Status::Argument;
    assert_fails(sequence.append(0, &x[..33], &x[..33]), argument, &["k has 33", "multiple of 32"]);
    assert_fails(sequence.append::<f32>(0, &[], &[]), argument, &["k has 0"]);
    assert_fails(sequence.append(0, &x[..64], &x[..32]), argument, &["v has 32", "expected 64"]);
    assert_fails(sequence.append_at(0, &x[..64], &x[..64], &[1]), argument, &["positions has 1", "expected 2"]);
    let batch = Append::new(&x[..32], &x[..31]);
    assert_fails(cache.append(0, &mut [&mut sequence], batch), argument, &["v has 31", "[1, 2, 16]"]);
    assert_fails(cache.append(0, &mut [], Append::new(&x[..32], &x[..32])), argument, &["sequences is empty"]);
    let batch = Append::new(&x[..32], &x[..32]).token_counts(&[0]);
    assert_fails(cache.append(0, &mut [&mut sequence], batch), argument, &["token_counts[0] is 0"]);
    let batch = Append::new(&x[..32], &x[..32]).k_token_stride(40).token_counts(&[2]);
    assert_fails(cache.append(0, &mut [&mut sequence], batch), argument, &["k has 32", "takes 72"]);

    let mut output = vec![0.0f32; 128];
    let batch = Extend::new(&x[..32], &x[..32], &x[..63], &mut output[..64]);
    let message = "q has 63 elements, expected 64: [1, 4, 16]";
    assert_fails(cache.extend(0, &mut [&mut sequence], batch), argument, &[message]);
    let mut refused = |message: &str, attend: &dyn Fn(&mut [f32]) -> kvq::Result<()>| {
        assert_fails(attend(&mut output), argument, &[message]);
    };
    let (x, cache, one) = (&x, &cache, [&sequence]);
    refused("sequences is empty", &|y| cache.attend(0, &[], Attend::new(&x[..64], &mut y[..64])));
    let message = "q has 63 elements, expected 64: [1, 4, 16]";
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..63], &mut y[..64])));
    let message = "output has 128 elements, expected 64: [1, 4, 16]";
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..64], y)));
    let message = "query_positions has 1 elements, expected 2: [queries]";
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..128], y).query_counts(&[2]).query_positions(&[1])));
    let message = "sinks has 3 elements, expected 4: [q_heads]";
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..64], &mut y[..64]).sinks(&[0.0; 3])));
    let message = "lse has 5 elements, expected 4: [queries, q_heads]";
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..64], &mut y[..64]).lse(&mut [0.0; 5])));
    let message = "q has 128 elements, but [2, 4, 16] by its strides takes";
    let far = usize::MAX;
    refused(message, &|y| cache.attend(0, &one, Attend::new(&x[..128], y).query_counts(&[2]).q_token_stride(far)));
    assert_eq!(sequence.length(0).unwrap(), 10);

    let mut short = [0.0f32; 15];
    let result = sequence.decode_into(0, 0, 0..1, Some(&mut short), None, None);
    assert_fails(result, argument, &["k has 15", "expected 16"]);
    assert_fails(sequence.decode(0, 0, 5..11), argument, &["slots is 5..11", "0..10"]);
}

#[test]
fn the_librarys_messages_name_the_argument_and_its_value() {
    let cache = small("fp16");
    let mut sequence = filled(&cache, 10, 1);
    let (x, mut output) = (numbers(64, 1), vec![0.0f32; 64]);
    let argument = Status::Argument;
    assert_fails(sequence.append(7, &x, &x), argument, &["layer", "7"]);
    assert_fails(cache.attend(2, &[&sequence], Attend::new(&x, &mut output)), argument, &["layer", "2"]);
    assert_fails(sequence.length(usize::MAX), argument, &["layer", "2147483647"]);
    assert_fails(sequence.slots(0, 2), argument, &["kv_head", "2"]);
    assert_fails(sequence.room(3), argument, &["layer", "3"]);
    assert_fails(cache.describe_layer(2), argument, &["layer", "2"]);
    assert_eq!(sequence.length(0).unwrap(), 10);

    let context = cache.context();
    assert_fails(Policy::load(context, "int5"), Status::Format, &["int5"]);
    let options = CacheOptions::new(1, 2, 2, 16).inv_freq([1.0]);
    assert_fails(Cache::new(context, options, None), argument, &["inv_freq has 1", "expected 8"]);
    let policy = Policy::load(context, "fp16").unwrap();
    assert_fails(policy.with_eviction("best", 64), argument, &["best"]);
    assert_fails(policy.with_layer(3, 2, Some("int4"), None), argument, &["first_layer", "3"]);
    assert_fails(policy.with_layer(0, 2, Some("int4"), Some("int5")), argument, &["values", "int5"]);
    assert_fails(cache.predict_usage(0, 10, 1), argument, &["sequences", "0"]);
    assert_fails(Matrix::predict_bytes("nuq-7", 2, 64, false), argument, &["scheme", "nuq-7"]);
}

#[test]
fn a_nul_in_a_name_is_refused() {
    let context = context();
    let create = |options| Context::new(options);
    assert_fails(create(ContextOptions::new().cpu_isa("av\0x2")), Status::Argument, &["cpu_isa", "byte 2"]);
    assert_fails(create(ContextOptions::new().cpu_isa("abacus")), Status::Unsupported, &["abacus"]);
    let w = numbers(64 * 2, 1);
    let quantize = |scheme| Matrix::quantize(&context, QuantizeOptions::new().scheme(scheme), &w, 2, 64);
    assert_fails(quantize("nuq\0-4"), Status::Argument, &["scheme", "byte 3"]);
    assert_fails(quantize("nuq-7"), Status::Argument, &["scheme", "nuq-7"]);
    assert_fails(Matrix::load(&context, &[], "a\0"), Status::Argument, &["name"]);
    let policy = Policy::load(&context, "fp16").unwrap();
    assert_fails(policy.with_eviction("snap\0", 64), Status::Argument, &["method"]);
    assert_fails(policy.with_layer(0, 0, Some("int8\0"), None), Status::Argument, &["keys"]);
    assert_fails(Matrix::predict_bytes("nuq\0", 2, 64, false), Status::Argument, &["scheme"]);
    assert_eq!(kvq::scheme_bits("nuq-4\0"), 0.0);
}

#[test]
fn a_limit_is_an_error_of_its_own() {
    let context = Context::new(ContextOptions::new().max_bytes(1 << 20)).unwrap();
    let cache = Cache::new(&context, CacheOptions::new(1, 1, 1, 64), None).unwrap();
    let x = numbers(64 * 16384, 1);
    assert_fails(Sequence::new(&cache).unwrap().append(0, &x, &x), Status::Limit, &["1048576"]);
    let info = context.describe().unwrap();
    assert!(info.bytes <= info.peak_bytes && info.peak_bytes <= info.max_bytes);
    assert_eq!((info.device, info.n_threads, info.backend.as_str()), (Device::Cpu, 1, "cpu"));
    assert!(kvq::cpu_isas().contains(&info.isa));
}

#[test]
fn errors_say_their_status_by_name() {
    let error: Error = Policy::load(&context(), "int5").unwrap_err();
    assert!(error.to_string().starts_with("KVQ_E_FORMAT: "), "{error}");
    assert_eq!(error.backend_code(), 0);
    assert_eq!(Status::Other(-99).name(), "unknown status");
    assert_eq!(Status::from_code(-3), Status::Limit);
    let as_error: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert!(as_error.source().is_none());
}

#[test]
fn numbers_of_enumerations_survive_the_way_to_c_and_back() {
    for code in -12..4 {
        assert_eq!(Status::from_code(code).code(), code);
        assert_eq!(Rope::from_code(code).code(), code);
        assert_eq!(Dtype::from_code(code).code(), code);
        assert_eq!(Scope::from_code(code).code(), code);
    }
    let options = CacheOptions::new(1, 1, 1, 16).rope(Rope::Other(9));
    assert_fails(Cache::new(&context(), options, None), Status::Argument, &["rope", "9"]);
}
