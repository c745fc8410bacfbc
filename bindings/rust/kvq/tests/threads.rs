//! Many threads on one cache.
mod common;
use common::*;
use kvq::{
    Append, Attend, Cache, CacheOptions, Centres, Codebook, CompressOptions, Context, ContextOptions, DeviceAppend,
    DeviceAttend, Matrix, Policy, QuantizeOptions, Router, Sequence,
};
use std::ops::ControlFlow;
use std::thread;

#[test]
fn everything_can_be_sent_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<(Context, Policy, Centres, Codebook, Router, Cache, Sequence, Matrix, kvq::Error)>();
    check::<(CacheOptions, CompressOptions, Append<'_>, Attend<'_>, DeviceAppend<'_>, DeviceAttend<'_>)>();
    fn check_send<T: Send>() {}
    check_send::<(ContextOptions, QuantizeOptions<'_>)>(); // their hooks need not be Sync
}

#[test]
fn options_made_on_one_thread_are_used_on_another() {
    let (q, mut output) = (numbers(64, 7), vec![0.0f32; 64]);
    let mut told = 0;
    let mut progress = |_| {
        told += 1;
        ControlFlow::Continue(())
    };
    let (options, quantize) = (ContextOptions::new().n_threads(2), QuantizeOptions::new().progress(&mut progress));
    let batch = Attend::new(&q, &mut output);
    thread::scope(|scope| {
        scope.spawn(move || {
            let context = Context::new(options).unwrap();
            Matrix::quantize(&context, quantize, &numbers(64 * 64, 1), 64, 64).unwrap();
            let cache = small("int4");
            cache.attend(0, &[&filled(&cache, 90, 1)], batch).unwrap();
        });
    });
    assert!(told > 0 && output.iter().any(|&x| x != 0.0));
}

#[test]
fn attends_on_the_same_sequence_give_the_same_bits_on_all_threads() {
    let cache = small("int4");
    let sequence = filled(&cache, 90, 1);
    let expected = attended(&cache, &sequence, 7);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| assert_eq!(attended(&cache, &sequence, 7), expected)));
        }
    });
}

fn attended(cache: &Cache, sequence: &Sequence, seed: u32) -> Vec<f32> {
    let (q, mut output) = (numbers(64, seed), vec![0.0f32; 64]);
    cache.attend(0, &[sequence], Attend::new(&q, &mut output)).unwrap();
    output
}

#[test]
fn sequences_are_appended_to_at_once_while_bytes_are_counted() {
    let cache = small("int8");
    let expected = filled(&cache, 70, 3).save().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let sequence = filled(&cache, 70, 3);
                    assert_eq!(sequence.fork().unwrap().save().unwrap(), expected);
                }
            });
        }
        scope.spawn(|| (0..100).for_each(|_| assert!(cache.usage().unwrap().total_bytes > 0)));
    });
    assert_eq!(cache.usage().unwrap().scalars, 0);
}

#[test]
fn where_the_policy_evicts_attends_on_shared_sequences_take_turns() {
    let context = context();
    let policy = Policy::load(&context, "fp16+h2o:40").unwrap();
    let cache = Cache::new(&context, CacheOptions::new(1, 4, 2, 16), &policy).unwrap();
    let (mut a, mut b) = (filled(&cache, 90, 1), filled(&cache, 90, 2));
    let (q, expected) = (numbers(128, 5), attended(&cache, &a, 7));
    thread::scope(|scope| {
        for turn in 0..4 {
            let (a, b, cache, q, expected) = (&a, &b, &cache, &q, &expected);
            scope.spawn(move || {
                for _ in 0..50 {
                    let mut output = vec![0.0f32; 128];
                    let pair = if turn % 2 == 0 { [a, b] } else { [b, a] }; // opposite orders do not wait for each other
                    cache.attend(0, &pair, Attend::new(q, &mut output)).unwrap();
                    cache.attend(0, &[a, a], Attend::new(q, &mut output)).unwrap();
                    assert_eq!(a.length(0).unwrap() + b.slots(0, 1).unwrap(), 180);
                    assert_eq!(attended(cache, a, 7), *expected);
                }
            });
        }
    });
    for sequence in [&mut a, &mut b] {
        assert_eq!(sequence.compress(CompressOptions::new()).unwrap().kept, [40, 40]);
    }
    let x = numbers(64, 1);
    cache.append(0, &mut [&mut a, &mut b], Append::new(&x, &x)).unwrap();
}
