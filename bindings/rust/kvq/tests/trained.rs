//! Codebooks, centres and routers of the demonstration model.
mod common;
use common::*;
use kvq::{Cache, CacheOptions, Centres, Codebook, FileKind, Policy, Router, RouterMethod, Status};
use std::fs;

fn shape() -> CacheOptions {
    CacheOptions::new(6, 4, 2, 128)
}

/// A file is saved unchanged; a policy that needs it refuses a cache without it.
fn used(
    kind: FileKind,
    file: &str,
    policy: &str,
    load: impl Fn(&kvq::Context, &[u8]) -> kvq::Result<(Vec<u8>, CacheOptions)>,
) {
    let context = context();
    let bytes = fs::read(repository().join("models/demo").join(file)).unwrap();
    assert_eq!(context.file_type(&bytes).unwrap(), kind);
    assert_eq!(context.file_type(&[]).unwrap(), FileKind::Unknown);
    let (saved, options) = load(&context, &bytes).unwrap();
    assert_eq!(saved, bytes);
    let policy = Policy::load(&context, policy).unwrap();
    assert_fails(Cache::new(&context, shape(), &policy), Status::Argument, &[]);
    filled(&Cache::new(&context, options, &policy).unwrap(), 70, 1);
    assert_fails(load(&context, &bytes[..bytes.len() / 2]), Status::Format, &[]);
}

#[test]
fn a_codebook_is_read_described_used_and_written_again() {
    used(FileKind::Codebook, "commvq-2bit.safetensors", "commvq", |context, bytes| {
        let codebook = Codebook::load(context, bytes)?;
        let (info, layer) = (codebook.describe()?, codebook.describe_layer(5)?);
        assert_eq!((info.n_layers, info.head_dim, layer.present), (6, 128, true));
        assert_eq!(layer.key_stage_errors[info.key_stages - 1], layer.key_error);
        assert_fails(codebook.describe_layer(6), Status::Argument, &["layer"]);
        Ok((codebook.save()?, shape().codebook(&codebook)))
    });
}

#[test]
fn centres_are_read_described_used_and_written_again() {
    used(FileKind::Centres, "centres.safetensors", "gs2+centres", |context, bytes| {
        let centres = Centres::load(context, bytes)?;
        let layer = centres.describe_layer(5)?;
        assert!(centres.describe()?.n_layers == 6 && layer.present && layer.key_residual > 0.0);
        let none = centres.read_scales(5)?;
        assert_eq!((none.key_scales, none.value_scales, none.value_offsets), (None, None, None));
        Ok((centres.save()?, shape().centres(&centres)))
    });
}

#[test]
fn scales_are_read_and_used() {
    let context = context();
    let bytes = fs::read(repository().join("models/demo/scales.safetensors")).unwrap();
    let centres = Centres::load(&context, &bytes).unwrap();
    let scales = centres.read_scales(5).unwrap();
    let (keys, values) = (scales.key_scales.unwrap(), scales.value_scales.unwrap());
    assert_eq!((keys.len(), values.len(), scales.value_offsets.unwrap().len()), (256, 256, 256));
    assert!(keys.iter().chain(&values).all(|one| *one > 0.0 && *one <= 1.0));
    assert_eq!(keys[..64], keys[64..128]); // pairs of RoPE, of the first head
    assert_ne!(keys, centres.read_scales(4).unwrap().key_scales.unwrap());
    assert_fails(centres.read_scales(6), Status::Argument, &["layer is 6"]);
    let policy = Policy::load(&context, "int2").unwrap();
    let output = |options| {
        let cache = Cache::new(&context, options, &policy).unwrap();
        let mut out = vec![0.0; 512];
        cache.attend(0, &[&filled(&cache, 70, 1)], kvq::Attend::new(&[0.5; 512], &mut out)).unwrap();
        out
    };
    assert_ne!(output(shape()), output(shape().centres(&centres)));
}

#[test]
fn a_router_is_read_described_used_and_written_again() {
    used(
        FileKind::Router,
        "moqae.safetensors",
        "{version: 1, router: {experts: [fp16, int4, int2]}}",
        |context, bytes| {
            let router = Router::load(context, bytes)?;
            let (info, group) = (router.describe()?, router.describe_group(1)?);
            assert_eq!(
                (info.method, info.experts.as_str(), group.first_layer),
                (RouterMethod::Label, "fp16, int4, int2", 3)
            );
            Ok((router.save()?, shape().router(&router)))
        },
    );
}

/// Experimental functions are called through the raw layer, with the handle of an object.
#[cfg(feature = "experimental")]
#[test]
fn a_plan_is_made_in_the_raw_layer() {
    use kvq::sys;
    use std::{ffi::CStr, mem, ptr};
    let context = context();
    let (name, scheme) = (b"up\0".as_ptr().cast(), b"tcx-3\0".as_ptr().cast());
    // SAFETY: every pointer is valid during the calls.
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
