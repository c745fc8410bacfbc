//! Steps: committed tokens stay, and others are taken back, whatever leaves the step.
mod common;
use common::*;
use kvq::{Append, Cache, Extend, Sequence, Status, Step};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Extends all layers by `n` tokens of each sequence, the same every time.
fn extend_all(cache: &Cache, step: &mut Step<'_>, n: usize) {
    let rows = n * step.sequences().len();
    let counts = vec![n as i32; step.sequences().len()];
    let (k, v, q) = (numbers(rows * 32, 5), numbers(rows * 32, 6), numbers(rows * 64, 7));
    let mut output = vec![0.0f32; rows * 64];
    for layer in 0..2 {
        let batch = Extend::new(&k, &v, &q, &mut output).token_counts(&counts);
        cache.extend(layer, step.sequences(), batch).unwrap();
    }
}

fn lengths(sequence: &Sequence) -> [usize; 2] {
    [0, 1].map(|layer| sequence.length(layer).unwrap())
}

#[test]
fn committed_tokens_stay_as_if_no_others_had_been_appended() {
    let cache = small("int4");
    let (mut a, mut b) = (filled(&cache, 100, 1), filled(&cache, 30, 9));
    let (mut expected, before) = (a.fork().unwrap(), b.save().unwrap());
    let mut step = cache.step([&mut a, &mut b], &[40, 40]).unwrap();
    extend_all(&cache, &mut step, 40);
    assert_eq!(lengths(step.sequences()[0]), [140, 140]);
    step.commit_first(&[3, 0]).unwrap();
    let (k, v) = (numbers(80 * 32, 5), numbers(80 * 32, 6));
    for layer in 0..2 {
        expected.append(layer, &k[..3 * 32], &v[..3 * 32]).unwrap();
    }
    assert_eq!(a.save().unwrap(), expected.save().unwrap());
    assert_eq!(b.save().unwrap(), before);

    let mut many = [a, b];
    let mut step = cache.step(&mut many, &[1, 1]).unwrap();
    extend_all(&cache, &mut step, 1);
    step.commit().unwrap();
    assert_eq!((lengths(&many[0]), lengths(&many[1])), ([104, 104], [31, 31]));
}

#[test]
fn a_path_of_a_tree_stays_whose_tokens_see_what_the_mask_says() {
    let cache = small("int4");
    let mut sequence = filled(&cache, 100, 1);
    let mut expected = sequence.fork().unwrap();
    let (k, v, q) = (numbers(3 * 32, 5), numbers(3 * 32, 6), numbers(3 * 64, 7));
    let (mut tree, mut path) = (vec![0.0f32; 3 * 64], vec![0.0f32; 2 * 64]);
    let (positions, mask) = ([100, 100, 101], [1, 2, 6]); // two siblings, and a child of the second one
    let mut step = cache.step([&mut sequence], &[3]).unwrap();
    for layer in 0..2 {
        let batch = Extend::new(&k, &v, &q, &mut tree).token_counts(&[3]).positions(&positions).mask(&mask);
        cache.extend(layer, step.sequences(), batch.mask_slots(3)).unwrap();
        let mut unused = [0.0f32; 3 * 64];
        let batch = Extend::new(&k, &v, &q, &mut unused).token_counts(&[3]).mask(&mask).mask_slots(40);
        let refused = cache.extend(layer, step.sequences(), batch);
        assert_fails(refused, Status::Argument, &["mask has 3 elements, expected 6"]);
        let alone = Extend::new(&k[32..], &v[32..], &q[64..], &mut path).token_counts(&[2]);
        cache.extend(layer, &mut [&mut expected], alone).unwrap();
    }
    step.commit_kept(&[&[1, 2]]).unwrap();
    assert_eq!(sequence.save().unwrap(), expected.save().unwrap());
    for (a, b) in tree[64..].iter().zip(&path) {
        assert!((a - b).abs() < 1e-4, "{a} in the tree, {b} alone");
    }
}

#[test]
fn tokens_are_taken_back_by_abort_drop_and_panic() {
    let cache = small("int4");
    let mut sequence = filled(&cache, 100, 1);
    let before = sequence.save().unwrap();
    let mut step = cache.step([&mut sequence], &[4]).unwrap();
    extend_all(&cache, &mut step, 4);
    step.abort().unwrap();
    assert_eq!(sequence.save().unwrap(), before);

    let mut step = cache.step([&mut sequence], &[4]).unwrap();
    extend_all(&cache, &mut step, 4);
    assert!(format!("{step:?}").starts_with("Step"));
    drop(step);
    assert_eq!(sequence.save().unwrap(), before);

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut step = cache.step([&mut sequence], &[4]).unwrap();
        extend_all(&cache, &mut step, 4);
        panic!("the sampler has failed");
    }));
    assert!(panicked.is_err());
    assert_eq!(sequence.save().unwrap(), before);
}

#[test]
fn what_a_step_refuses_changes_nothing() {
    let cache = small("int4");
    let mut sequence = filled(&cache, 100, 1);
    assert_fails(cache.step([&mut sequence], &[0]), Status::Argument, &["must be at least 1"]);
    assert_fails(cache.step([&mut sequence], &[]), Status::Argument, &["token_counts has 0", "expected 1"]);
    assert_fails(cache.step([], &[]), Status::Argument, &["n_sequences"]);
    let mut foreign = filled(&small("int4"), 1, 1);
    assert_fails(cache.step([&mut foreign], &[1]), Status::Argument, &["belongs to another cache"]);

    let mut step = cache.step([&mut sequence], &[2]).unwrap();
    extend_all(&cache, &mut step, 2);
    let inside = &mut *step.sequences()[0];
    assert_fails(inside.truncate(100), Status::State, &["in a step"]);
    assert_fails(inside.fork(), Status::State, &["in a step"]);
    assert_fails(inside.save(), Status::State, &["in a step"]);
    assert_fails(inside.reserve(64), Status::State, &["in a step"]);
    assert_fails(inside.recode(None), Status::State, &["in a step"]);
    assert_fails(cache.step([inside], &[1]), Status::State, &["in a step already"]);
    let x = numbers(32, 1);
    let more = cache.append(0, step.sequences(), Append::new(&x, &x));
    assert_fails(more, Status::Argument, &["the step began with 2 tokens"]);
    assert_fails(step.commit_first(&[3]), Status::Argument, &["has received 2 tokens"]);
    assert_eq!(lengths(&sequence), [100, 100]); // a refused commit aborts

    let mut step = cache.step([&mut sequence], &[2]).unwrap();
    step.sequences()[0].append(1, &x, &x).unwrap();
    assert_fails(step.commit(), Status::State, &["cannot keep all tokens"]);
    assert_eq!(lengths(&sequence), [100, 100]);
}
