//! Codebooks, centres and routers: those of the demo model, and with the feature `experimental` ones trained here.
mod common;
use common::*;
use kvq::{Attend, Cache, CacheOptions, Codebook, Policy, Rope, Router, RouterMethod, Scope, Status};
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

#[cfg(feature = "experimental")]
mod training {
    use super::*;
    use kvq::{
        Centres, CentresTrainer, CentresTrainerOptions, CodebookTrainer, CodebookTrainerOptions, RouterTrainer,
        RouterTrainerOptions, ValueMethod,
    };
    use std::ops::ControlFlow;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    fn trainer(context: &kvq::Context) -> CodebookTrainer {
        let options = CodebookTrainerOptions::new(2, 1, 16)
            .key_stages(2)
            .key_codes(4)
            .key_rounds(1)
            .value_rounds(1)
            .value_method(ValueMethod::LeastSquares)
            .note("a test");
        CodebookTrainer::new(context, options).unwrap()
    }

    #[test]
    fn codebooks_are_trained_layer_by_layer_and_taken_up_again() {
        let context = context();
        let mut first = trainer(&context);
        let (k, v) = (numbers(600 * 16, 1), numbers(600 * 16, 2));
        for layer in 0..2 {
            first.add(layer, Some(&k), Some(&v)).unwrap();
        }
        assert_fails(first.add(0, Some(&k[..17]), Some(&v)), Status::Argument, &["k has 17"]);
        assert_fails(first.add(0, Some(&k), Some(&v[..16])), Status::Argument, &["v has 16"]);
        let mut told = 0;
        let mut go_on = |_| {
            told += 1;
            ControlFlow::Continue(())
        };
        first.run(0, Some(&mut go_on)).unwrap();
        assert!(told > 0);
        let half = first.result().unwrap();
        assert_eq!(half.describe().unwrap().layers_present, 1);
        assert_eq!(half.describe().unwrap().note, "a test");
        assert_fails(first.run(1, Some(&mut |_| ControlFlow::Break(()))), Status::Cancelled, &[]);
        let panic = catch_unwind(AssertUnwindSafe(|| first.run(1, Some(&mut |_| panic!("enough")))));
        assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "enough");
        first.run(1, None).unwrap();

        let mut second = trainer(&context);
        second.resume(&half).unwrap();
        second.add(1, Some(&k), Some(&v)).unwrap();
        second.run(1, None).unwrap();
        assert_eq!(second.result().unwrap().save().unwrap(), first.result().unwrap().save().unwrap());
    }

    #[test]
    fn centres_are_trained_described_written_and_read_again() {
        let context = context();
        let options = CentresTrainerOptions::new(2, 1, 16).key_centres(4).value_centres(1).seed(3).note("a test");
        let mut trainer = CentresTrainer::new(&context, options).unwrap();
        let (k, v) = (numbers(600 * 16, 1), numbers(600 * 16, 2));
        for layer in 0..2 {
            trainer.add(layer, Some(&k), Some(&v)).unwrap();
        }
        assert_fails(trainer.add(0, Some(&k[..17]), Some(&v)), Status::Argument, &["k has 17"]);
        assert_fails(trainer.run(0, Some(&mut |_| ControlFlow::Break(()))), Status::Cancelled, &[]);
        trainer.run(0, None).unwrap();
        assert_eq!(trainer.result().unwrap().describe().unwrap().layers_present, 1);
        trainer.run(1, None).unwrap();
        let centres = trainer.result().unwrap();
        drop(trainer);
        let info = centres.describe().unwrap();
        assert_eq!((info.key_centres, info.value_centres, info.tokens, info.note.as_str()), (4, 1, 600, "a test"));
        let layer = centres.describe_layer(1).unwrap();
        assert!(layer.present && layer.key_residual > 0.0 && layer.key_residual < layer.value_residual);
        let bytes = centres.save().unwrap();
        assert_eq!(Centres::load(&context, &bytes).unwrap().save().unwrap(), bytes);
        assert_fails(Centres::load(&context, &bytes[..bytes.len() / 2]), Status::Format, &[]);
        // A policy that needs none takes them too.
        let policy = Policy::load(&context, "int4").unwrap();
        Cache::new(&context, CacheOptions::new(1, 2, 1, 16).centres(&centres), &policy).unwrap();
    }

    #[test]
    fn routers_are_trained_on_texts() {
        let context = context();
        let policy = Policy::load(&context, "{version: 1, router: {experts: [int8, int2]}}").unwrap();
        let shape = CacheOptions::new(1, 2, 1, 16);
        let options = RouterTrainerOptions::new().sharing(1).epochs(2).mean_bits(5.0).note("a test");
        let mut trainer = RouterTrainer::new(&context, shape, &policy, options).unwrap();
        assert_fails(trainer.result(), Status::State, &[]);
        for text in 0..4 {
            let (q, k, v) = (numbers(256 * 32, text), numbers(256 * 16, 10 + text), numbers(256 * 16, 20 + text));
            trainer.add(0, Some(&q), &k, Some(&v)).unwrap();
            assert_fails(trainer.add(0, Some(&q[1..]), &k, Some(&v)), Status::Argument, &["q has 8191"]);
            assert_fails(trainer.add(0, Some(&q), &k, Some(&v[1..])), Status::Argument, &["v has 4095"]);
        }
        assert_fails(trainer.run(0.0, Some(&mut |_| ControlFlow::Break(()))), Status::Cancelled, &[]);
        trainer.run(0.0, None).unwrap();
        let router = trainer.result().unwrap();
        drop(trainer);
        let info = router.describe().unwrap();
        assert_eq!((info.n_experts, info.tokens, info.note.as_str()), (2, 1024, "a test"));
    }
}
