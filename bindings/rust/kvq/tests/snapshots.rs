//! Sequences with another policy than their cache's, and snapshots of several of them.
mod common;
use common::*;
use kvq::{Cache, CacheOptions, Context, ContextOptions, HostAllocator, LoadOptions, Policy, Rope, Sequence, Status};
use std::alloc::{alloc, dealloc, Layout};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::Arc;

/// Another cache of the same context and policy.
fn beside(cache: &Cache) -> Cache {
    common::cache(cache.context(), "gs4", CacheOptions::new(2, 4, 2, 16).rope(Rope::None))
}

fn policy(cache: &Cache, text: &str) -> Policy {
    Policy::load(cache.context(), text).unwrap()
}

/// A sequence of 300 tokens, and a fork of it with 40 more.
fn conversations(cache: &Cache) -> (Sequence, Sequence) {
    let mut parent = filled(cache, 300, 1);
    parent.reserve(0).unwrap(); // finds its scales, so that both share sealed pages
    let mut fork = parent.fork().unwrap();
    extend(&mut fork, 40, 9);
    (parent, fork)
}

fn assert_same_tokens(a: &Sequence, b: &Sequence) {
    for layer in 0..2 {
        let n = a.length(layer).unwrap();
        assert_eq!(n, b.length(layer).unwrap());
        assert_eq!(a.decode(layer, 1, 0..n).unwrap(), b.decode(layer, 1, 0..n).unwrap());
    }
}

#[test]
fn recoding_takes_the_memory_that_was_predicted() {
    let cache = small("gs4");
    let gs2 = policy(&cache, "gs2");
    let mut sequence = filled(&cache, 300, 1);
    sequence.reserve(0).unwrap(); // finds its scales
    let before = sequence.usage().unwrap();
    let formats = cache.describe_layer(1).unwrap().formats;
    let predicted = sequence.predict_recode(&gs2).unwrap();
    assert_eq!(predicted.bytes_before, before.total_bytes);
    assert!(predicted.pages > 0);
    sequence.recode(&gs2).unwrap();
    let after = sequence.usage().unwrap();
    assert_eq!(after.total_bytes, predicted.bytes_after);
    assert!(after.total_bytes < before.total_bytes && after.sealed_bytes < before.sealed_bytes);
    assert_ne!(sequence.describe_layer(1).unwrap().formats, formats);
    assert_eq!(cache.describe_layer(1).unwrap().formats, formats);

    let mut fork = sequence.fork().unwrap(); // which has the policy of its parent
    assert_eq!(fork.predict_recode(&gs2).unwrap().pages, 0);
    fork.recode(None).unwrap();
    assert_eq!(fork.describe_layer(1).unwrap().formats, formats);
    assert_eq!(sequence.usage().unwrap().sealed_bytes, after.sealed_bytes);
}

#[test]
fn a_refused_recoding_changes_nothing() {
    let cache = small("gs4");
    let mut sequence = filled(&cache, 100, 1);
    let before = sequence.save().unwrap();
    let evicting = policy(&cache, "gs2+snapkv:64");
    assert_fails(sequence.recode(&evicting), Status::Argument, &["evicts otherwise"]);
    assert_fails(sequence.predict_recode(&evicting), Status::Argument, &["evicts otherwise"]);
    assert_fails(sequence.describe_layer(2), Status::Argument, &["layer is 2"]);
    assert_eq!(sequence.save().unwrap(), before);
    sequence.reserve(64).unwrap();
    assert_fails(sequence.recode(&policy(&cache, "gs2")), Status::State, &["preallocated"]);
}

#[test]
fn a_sequence_and_its_fork_share_pages_again_where_they_are_loaded() {
    let cache = small("gs4");
    let (parent, fork) = conversations(&cache);
    let bytes = cache.save(&[&parent, &fork]).unwrap();
    assert!(bytes.len() < parent.save().unwrap().len() + fork.save().unwrap().len());
    let other = beside(&cache);
    let info = other.describe_snapshot(&bytes, None).unwrap();
    assert_eq!((info.n_sequences, info.tokens, info.recoded_pages), (2, 340, 0));
    let loaded = other.load(&bytes, None).unwrap();
    let shared = other.usage().unwrap().shared_pages;
    assert!(shared > 0 && shared == cache.usage().unwrap().shared_pages);
    assert_same_tokens(&loaded[0], &parent);
    assert_same_tokens(&loaded[1], &fork);
    assert_eq!(other.save(&loaded.iter().collect::<Vec<_>>()).unwrap(), bytes);
    assert_eq!(cache.save(&[&parent]).unwrap(), parent.save().unwrap());
    drop(other);
    assert_eq!(loaded[1].length(1).unwrap(), 340); // a sequence keeps its cache
}

#[test]
fn other_formats_are_refused_unless_pages_may_be_recoded() {
    let cache = small("gs4");
    let (mut parent, fork) = conversations(&cache);
    let bytes = cache.save(&[&parent, &fork]).unwrap();
    let (other, gs2) = (beside(&cache), policy(&cache, "gs2"));
    let options = LoadOptions::new().policy(&gs2);
    assert_fails(other.load(&bytes, &options), Status::Mismatch, &[]);
    assert_fails(other.describe_snapshot(&bytes, &options), Status::Mismatch, &[]);
    assert_eq!(other.usage().unwrap().sealed_pages, 0);
    let options = options.recode(true);
    assert!(other.describe_snapshot(&bytes, &options).unwrap().recoded_pages > 0);
    let loaded = other.load(&bytes, &options).unwrap();
    assert!(other.usage().unwrap().shared_pages > 0);
    assert!(loaded[0].usage().unwrap().sealed_bytes < parent.usage().unwrap().sealed_bytes);
    parent.recode(&gs2).unwrap();
    assert_same_tokens(&loaded[0], &parent);
    assert!(format!("{options:?}").starts_with("LoadOptions((true"));
}

#[test]
fn wrong_sequences_and_snapshots_are_refused() {
    let cache = small("gs4");
    let (parent, fork) = conversations(&cache);
    let bytes = cache.save(&[&parent, &fork]).unwrap();
    let other = beside(&cache);
    assert_fails(cache.save(&[&parent, &parent]), Status::Argument, &["twice"]);
    assert_fails(cache.save(&[]), Status::Argument, &["n_sequences is 0"]);
    assert_fails(other.save(&[&parent]), Status::Argument, &["sequences[0] belongs to another cache"]);
    assert_fails(other.load_sequence(&bytes), Status::Mismatch, &["snapshot has 2 sequences"]);
    assert_fails(other.load(&bytes[1..], None), Status::Format, &[]);
    assert_fails(other.load(&[], None), Status::Format, &[]);
    assert_fails(other.describe_snapshot(&bytes[..bytes.len() - 1], None), Status::Format, &[]);
}

#[test]
fn sequences_of_an_evicting_cache_are_saved_too() {
    let cache = small("gs4+h2o:64");
    let (parent, fork) = conversations(&cache);
    let bytes = cache.save(&[&fork, &parent]).unwrap();
    assert_eq!(cache.load(&bytes, None).unwrap()[0].length(0).unwrap(), 340);
    assert_fails(cache.save(&[&parent, &parent]), Status::Argument, &["twice"]);
}

/// Counts what is live, and panics when no calls are left.
struct Counting {
    live: Arc<AtomicI64>,
    left: Arc<AtomicI64>,
}

// SAFETY: the memory is that of Rust's allocator.
unsafe impl HostAllocator for Counting {
    fn allocate(&self, layout: Layout) -> *mut u8 {
        if self.left.fetch_sub(1, SeqCst) == 0 {
            panic!("no more memory");
        }
        self.live.fetch_add(1, SeqCst);
        // SAFETY: the size is above 0.
        unsafe { alloc(layout) }
    }

    unsafe fn free(&self, memory: *mut u8, layout: Layout) {
        self.live.fetch_sub(1, SeqCst);
        // SAFETY: guaranteed by the caller.
        unsafe { dealloc(memory, layout) }
    }
}

#[test]
fn an_allocator_that_panics_at_any_time_leaves_no_sequences() {
    let cache = small("gs4");
    let (parent, fork) = conversations(&cache);
    let bytes = cache.save(&[&parent, &fork]).unwrap();
    let (live, left) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(-1)));
    let allocator = Counting { live: live.clone(), left: left.clone() };
    let context = Context::new(ContextOptions::new().allocator(allocator)).unwrap();
    let other = common::cache(&context, "gs2", CacheOptions::new(2, 4, 2, 16).rope(Rope::None));
    let options = LoadOptions::new().recode(true);
    drop(other.load(&bytes, &options).unwrap());
    let before = live.load(SeqCst);
    for failures in 0.. {
        left.store(failures, SeqCst);
        let loaded = catch_unwind(AssertUnwindSafe(|| other.load(&bytes, &options)));
        left.store(-1, SeqCst);
        if let Ok(loaded) = loaded {
            assert_eq!(loaded.unwrap()[1].length(1).unwrap(), 340);
            assert!(failures > 10);
            break;
        }
        assert_eq!(live.load(SeqCst), before);
    }
}
