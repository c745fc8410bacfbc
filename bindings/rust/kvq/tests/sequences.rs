//! What becomes of a sequence: forks, truncation, snapshots, room, eviction, bytes.
mod common;
use common::*;
use kvq::{
    Append, Cache, CacheOptions, CompressOptions, Context, ContextOptions, LayerShape, Policy, Rope, Sequence, Status,
};

#[test]
fn forks_are_cut_and_leave_their_parent_as_it_is() {
    let cache = small("int4");
    let parent = filled(&cache, 100, 1);
    let before = parent.save().unwrap();
    let mut fork = parent.fork().unwrap();
    assert!(parent.usage().unwrap().shared_pages > 0);
    extend(&mut fork, 1, 5);
    assert_eq!((parent.length(0).unwrap(), fork.length(0).unwrap()), (100, 101));
    fork.truncate(98).unwrap();
    assert_eq!((fork.length(1).unwrap(), fork.slots(1, 1).unwrap()), (98, 98));
    assert_fails(fork.truncate(50), Status::State, &["50"]);
    assert_eq!(parent.save().unwrap(), before);
}

#[test]
fn snapshots_come_back_and_reserved_pages_make_room() {
    let cache = small("int4+hadamard");
    let mut sequence = Sequence::new(&cache).unwrap();
    sequence.reserve(100).unwrap();
    let room = sequence.room(0).unwrap();
    extend(&mut sequence, 70, 1);
    assert_eq!(sequence.room(0).unwrap(), room - 70);
    let bytes = sequence.save().unwrap();
    assert_eq!(cache.load_sequence(&bytes).unwrap().save().unwrap(), bytes);
    assert_fails(cache.load_sequence(&[]), Status::Format, &[]);
}

#[test]
fn policies_are_written_with_their_layers_and_sizes_predicted() {
    let context = context();
    let plain = Policy::load(&context, "int4").unwrap();
    let policy = plain.with_layer(1, 1, Some("gs2"), None).unwrap();
    let text = policy.save().unwrap();
    assert_eq!(text, "version: 1\nkeys: int4\nvalues: int4\nlayers:\n  - {range: [1, 1], keys: gs2}\n");
    assert_eq!(Policy::load(&context, &text).unwrap().save().unwrap(), text);
    // Whose sequences wait for no scales: all tokens come at once.
    let cache = Cache::new(&context, CacheOptions::new(2, 4, 2, 16), &plain).unwrap();
    let predicted = cache.predict_usage(1, 200, 0).unwrap();
    let mut sequence = Sequence::new(&cache).unwrap();
    sequence.reserve(200).unwrap();
    extend(&mut sequence, 200, 1);
    assert_eq!(predicted, cache.usage().unwrap());
}

#[test]
fn compression_keeps_the_budget_and_frees_what_it_says() {
    let context = context();
    let options = CacheOptions::new(2, 4, 2, 16).rope(Rope::None);
    let plain = Policy::load(&context, "fp16").unwrap();
    let policy = plain.with_eviction("snapkv", 48).unwrap();
    assert_eq!(plain.describe().unwrap().eviction_budget, 0);
    let info = policy.describe().unwrap();
    assert_eq!((info.eviction_budget, info.eviction_window), (48, 32));
    let policy = plain.with_eviction("streaming", 48).unwrap(); // which scores by position alone
    let mut sequence = filled(&Cache::new(&context, options, &policy).unwrap(), 200, 1);
    let before = sequence.usage().unwrap();
    let done = sequence.compress(CompressOptions::new().budget(40)).unwrap();
    assert_eq!(done.bytes_freed, before.total_bytes - sequence.usage().unwrap().total_bytes);
    assert_eq!(done.kept, [40; 4]);
    assert_eq!((sequence.length(0).unwrap(), sequence.slots(0, 1).unwrap()), (200, 40));
}

#[test]
fn objects_are_dropped_in_any_order() {
    let order = |first: usize| {
        let context = Context::new(ContextOptions::new()).unwrap();
        let policy = Policy::load(&context, "int8").unwrap();
        let cache = Cache::new(&context, CacheOptions::new(2, 4, 2, 16), &policy).unwrap();
        let sequence = filled(&cache, 40, 1);
        let mut objects: Vec<Option<Box<dyn std::any::Any>>> =
            vec![Some(Box::new(context)), Some(Box::new(policy)), Some(Box::new(cache)), None];
        for step in 0..4 {
            objects[(first + step) % 4] = None;
        }
        assert_eq!(sequence.fork().unwrap().length(1).unwrap(), 40);
    };
    (0..4).for_each(order);
}

#[test]
fn objects_know_what_they_were_made_from() {
    let cache = small("fp16");
    let sequence = Sequence::new(&cache).unwrap();
    // SAFETY: both handles live.
    unsafe {
        assert_eq!(kvq::sys::kvq_sequence_cache(sequence.raw()), cache.raw());
        assert_eq!(kvq::sys::kvq_cache_context(cache.raw()), cache.context().raw());
    }
    assert_eq!(sequence.cache().raw(), cache.raw());
    assert_eq!(cache.describe_layer(1).unwrap().formats, "fp16");
    assert_eq!(cache.describe_layer(1).unwrap().n_formats, 1);
    let info = cache.describe();
    assert_eq!((info.n_layers, info.q_heads, info.kv_heads, info.head_dim), (2, 4, 2, 16));
    assert_eq!(info.scale, 0.25);
}

#[test]
fn parts_of_what_is_decoded_can_be_left_out() {
    let cache = small("fp16");
    let mut sequence = filled(&cache, 10, 1);
    let all = sequence.decode(0, 1, 2..7).unwrap();
    let (mut k, mut positions) = (vec![0.0f32; 5 * 16], vec![0; 5]);
    sequence.decode_into(0, 1, 2..7, Some(&mut k), None, Some(&mut positions)).unwrap();
    assert_eq!((k, positions), (all.k, vec![2, 3, 4, 5, 6]));
    let x = numbers(32, 1);
    cache.append(0, &mut [&mut sequence], Append::new(&x, &x)).unwrap();
    assert_eq!(sequence.length(0).unwrap(), 11);
}

#[test]
fn states_of_recurrent_layers_go_with_a_sequence() {
    let context = context();
    let shapes = [1, 3].map(|layer| LayerShape::new(layer).recurrent(true));
    let policy = Policy::load(&context, "int4").unwrap();
    let cache = Cache::new(&context, CacheOptions::new(4, 4, 2, 16).shapes(shapes), &policy).unwrap();
    assert!(cache.describe_layer(3).unwrap().recurrent && !cache.describe_layer(2).unwrap().recurrent);
    let mut sequence = Sequence::new(&cache).unwrap();
    for layer in [0, 2] {
        sequence.append(layer, &vec![0.5; 70 * 32], &vec![0.25; 70 * 32]).unwrap();
    }
    assert_fails(sequence.append(1, &[0.5; 32], &[0.5; 32]), Status::Argument, &["layer is 1", "recurrent"]);
    for layer in [1, 3] {
        sequence.put_state(layer, 64, b"state").unwrap();
    }
    sequence.put_state(1, 70, b"newer").unwrap();
    assert_eq!((sequence.find_state(1, 100).unwrap(), sequence.find_states(100).unwrap()), (70, 64));
    assert_fails(sequence.truncate(32), Status::State, &["length is 32", "layer 1 has no state"]);
    let mut loaded = cache.load_sequence(&sequence.save().unwrap()).unwrap();
    loaded.truncate(64).unwrap();
    assert_eq!(loaded.get_state(3, 64).unwrap(), b"state");
    sequence.drop_states(0, 70).unwrap();
    assert_fails(sequence.get_state(3, 64), Status::Argument, &["layer 3 has no state"]);
}
