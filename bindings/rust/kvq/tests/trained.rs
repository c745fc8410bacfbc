//! Codebooks, centres and routers: those of the demonstration model.
mod common;
use common::*;
use kvq::{Attend, Cache, CacheOptions, Centres, Codebook, Policy, Rope, Router, RouterMethod, Scope, Status};
use std::fs;

fn demo(name: &str) -> Vec<u8> {
    fs::read(repository().join("models/demo").join(name)).unwrap()
}

#[test]
fn a_codebook_is_read_described_used_and_written_again() {
    let context = context();
    let bytes = demo("commvq-2bit.safetensors");
    let codebook = Codebook::load(&context, &bytes).unwrap();
    assert_eq!(codebook.save().unwrap(), bytes);
    let info = codebook.describe().unwrap();
    assert_eq!((info.layers_present, info.rope), (info.n_layers, Rope::Half));
    let layers: Vec<_> = (0..info.n_layers).map(|layer| codebook.describe_layer(layer).unwrap()).collect();
    assert!(layers.iter().all(|layer| layer.present && layer.key_stage_errors[info.key_stages - 1] == layer.key_error));
    let mean = layers.iter().map(|layer| layer.key_error).sum::<f64>() / layers.len() as f64;
    assert!((info.key_error - mean).abs() < 1e-9);
    assert_fails(codebook.describe_layer(info.n_layers), Status::Argument, &["layer"]);
    assert!(matches!(info.key_norms, Scope::Head | Scope::Layer));

    let policy = Policy::load(&context, "commvq").unwrap();
    let options = CacheOptions::new(info.n_layers, 2 * info.kv_heads, info.kv_heads, info.head_dim);
    assert_fails(Cache::new(&context, options.clone(), &policy), Status::Argument, &["codebook"]);
    let cache = Cache::new(&context, options.codebook(&codebook), &policy).unwrap();
    drop(codebook);
    let sequence = filled(&cache, 70, 1);
    let size = 2 * info.kv_heads * info.head_dim;
    let mut output = vec![f32::NAN; size];
    cache.attend(0, &[&sequence], Attend::new(&numbers(size, 3), &mut output)).unwrap();
    assert!(output.iter().all(|x| x.is_finite()));
    assert_fails(Codebook::load(&context, &bytes[..bytes.len() / 2]), Status::Format, &[]);
}

#[test]
fn a_router_is_read_described_used_and_written_again() {
    let context = context();
    let bytes = demo("moqae.safetensors");
    let router = Router::load(&context, &bytes).unwrap();
    assert_eq!(router.save().unwrap(), bytes);
    let info = router.describe().unwrap();
    assert_eq!(info.experts.split(", ").count(), info.n_experts);
    assert_eq!(info.method, RouterMethod::Label);
    for group in 0..info.groups {
        let group = router.describe_group(group).unwrap();
        assert!((group.shares.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert!(group.first_layer <= group.last_layer && group.last_layer < info.n_layers);
    }
    assert_fails(router.describe_group(info.groups), Status::Argument, &["group"]);
    let policy = Policy::load(&context, &format!("router: {{experts: [{}]}}\nversion: 1\n", info.experts)).unwrap();
    let options = CacheOptions::new(info.n_layers, info.kv_heads, info.kv_heads, info.head_dim).rope(info.rope);
    assert_fails(Cache::new(&context, options.clone(), &policy), Status::Argument, &["router"]);
    let cache = Cache::new(&context, options.router(&router), &policy).unwrap();
    assert_eq!(cache.describe_layer(0).unwrap().n_formats, info.n_experts);
    filled(&cache, 70, 1);
    assert_fails(Router::load(&context, &demo("commvq-1bit.safetensors")), Status::Format, &[]);
}

#[test]
fn centres_are_read_described_used_and_written_again() {
    let context = context();
    let bytes = demo("centres.safetensors");
    let centres = Centres::load(&context, &bytes).unwrap();
    assert_eq!(centres.save().unwrap(), bytes);
    let info = centres.describe().unwrap();
    let layer = centres.describe_layer(info.n_layers - 1).unwrap();
    assert!(layer.present && layer.key_residual > 0.0 && layer.key_residual < 1.0);
    let policy = Policy::load(&context, "gs2+centres").unwrap();
    let options = CacheOptions::new(info.n_layers, info.kv_heads, info.kv_heads, info.head_dim).rope(info.rope);
    assert_fails(Cache::new(&context, options.clone(), &policy), Status::Argument, &["centres"]);
    filled(&Cache::new(&context, options.centres(&centres), &policy).unwrap(), 70, 1);
}

/// The experimental part is called as it is, with the handle of an object.
#[cfg(feature = "experimental")]
#[test]
fn a_plan_is_made_in_the_raw_layer() {
    use kvq::sys;
    use std::{ffi::CStr, mem, ptr};
    let context = context();
    let (name, scheme) = (b"up\0".as_ptr().cast(), b"tcx-3\0".as_ptr().cast());
    // SAFETY: as kvq.h says.
    unsafe {
        let mut content: sys::kvq_plan_content = mem::zeroed();
        sys::kvq_plan_content_init(&mut content, mem::size_of::<sys::kvq_plan_content>());
        (content.n_matrices, content.names, content.schemes) = (1, &name, &scheme);
        let mut plan = ptr::null_mut();
        assert_eq!(sys::kvq_plan_create(context.raw(), &content, &mut plan, ptr::null_mut()), sys::KVQ_OK);
        assert_eq!(CStr::from_ptr(sys::kvq_plan_scheme(plan, name)).to_str(), Ok("tcx-3"));
        sys::kvq_plan_destroy(plan);
    }
}
