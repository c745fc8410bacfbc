//! Pools: the results of a cache in memory of the program, blocks that move, and sizes that are refused.
mod common;
use common::*;
use kvq::{Append, Attend, BlockRange, Cache, CacheOptions, DeviceExtend, DevicePoolBatch, Dtype, Extend, Pool};
use kvq::{PoolBatch, PoolLimits, PoolOptions, PoolPlan, Sequence, Status};
use std::os::raw::c_void;

const LAYERS: usize = 2;

fn cached() -> Cache {
    let policy = "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}";
    cache(&context(), policy, CacheOptions::new(LAYERS, 4, 2, 32))
}

#[derive(Clone, Copy)]
#[repr(align(64))]
#[allow(dead_code)]
struct Line([u8; 64]);

/// So many bytes, aligned.
fn memory(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); (bytes + 63) / 64]
}

/// A program's side of a pool of 16 blocks and 3 tails.
struct Engine {
    pool: Pool,
    plan: PoolPlan,
    _memory: Vec<Vec<Line>>,
}

impl Engine {
    fn new(cache: &Cache, n_ranges: usize) -> Self {
        let layout = cache.block_layout(0, 32).unwrap();
        let (each, stride) = (16 / n_ranges, layout.block_bytes + 64);
        let mut held: Vec<_> = (0..LAYERS * n_ranges).map(|_| memory(each * stride)).collect();
        let ranges: Vec<_> = held.iter_mut().map(|one| BlockRange::new(pointer(one), each, stride)).collect();
        let mut of_tails: Vec<_> = (0..LAYERS).map(|_| memory(3 * layout.tail_bytes)).collect();
        let tails: Vec<_> = of_tails.iter_mut().map(pointer).collect();
        held.extend(of_tails);
        let options = PoolOptions::new(32, ranges).n_ranges(n_ranges).tails(3, &tails);
        // SAFETY: the vectors live as long as the pool and its plan, whose calls follow one another.
        let pool = unsafe { Pool::new(cache, options).unwrap() };
        let plan = pool.plan(PoolLimits::new(3, 200, 8)).unwrap();
        Engine { pool, plan, _memory: held }
    }

    /// Plans tokens of sequences of up to five blocks each.
    fn batch(&mut self, counts: &[i32], lengths: &[i32]) -> kvq::Result<()> {
        let starts = starts(counts);
        let n = counts.len() as i32;
        let table: Vec<i32> = (0..n).flat_map(|row| (0..5).map(move |block| block * n + row)).collect();
        let tails: Vec<i32> = (0..n).rev().collect();
        self.plan.batch(PoolBatch::new(&starts, lengths, &table).table_stride(5).tails(&tails))
    }
}

fn pointer(memory: &mut Vec<Line>) -> *mut c_void {
    memory.as_mut_ptr().cast()
}

fn starts(counts: &[i32]) -> Vec<i32> {
    let mut starts = vec![0];
    starts.extend(counts.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    }));
    starts
}

#[test]
fn results_are_those_of_the_cache() {
    for n_ranges in [1, 4] {
        let cache = cached();
        let mut engine = Engine::new(&cache, n_ranges);
        let mut sequences: Vec<_> = (0..3).map(|_| Sequence::new(&cache).unwrap()).collect();
        let mut lengths = [0; 3];
        for (step, counts) in [[40, 3, 70], [1, 1, 1], [20, 30, 2], [1, 1, 1]].iter().enumerate() {
            lengths.iter_mut().zip(counts).for_each(|(length, n)| *length += n);
            engine.batch(counts, &lengths).unwrap();
            let n = counts.iter().sum::<i32>() as usize;
            for layer in 0..LAYERS {
                let seed = (step * LAYERS + layer) as u32 * 3;
                let (k, v, q) = (numbers(n * 64, seed), numbers(n * 64, seed + 1), numbers(n * 128, seed + 2));
                let (mut output, mut expected) = (vec![0.0f32; n * 128], vec![1.0f32; n * 128]);
                let mut lse = vec![f32::NAN; n * 4];
                engine.plan.extend(layer, Extend::new(&k, &v, &q, &mut output).lse(&mut lse)).unwrap();
                let mut all: Vec<_> = sequences.iter_mut().collect();
                cache.extend(layer, &mut all, Extend::new(&k, &v, &q, &mut expected).token_counts(counts)).unwrap();
                assert_eq!(output, expected);
                assert!(lse.iter().all(|x| x.is_finite()));
            }
        }
        assert!(engine.plan.bytes() > 0);
    }
}

#[test]
fn a_block_goes_to_another_pool() {
    let cache = cached();
    let (mut first, mut second) = (Engine::new(&cache, 1), Engine::new(&cache, 1));
    first.batch(&[64], &[64]).unwrap();
    first.plan.append(0, Append::new(&numbers(64 * 64, 1), &numbers(64 * 64, 2))).unwrap();
    for block in 0..2 {
        let bytes = first.pool.read_block(0, block).unwrap();
        assert_eq!(bytes.len(), cache.block_layout(0, 32).unwrap().block_bytes);
        second.pool.write_block(0, block, &bytes).unwrap();
    }
    let (k, v, q) = (numbers(64, 3), numbers(64, 4), numbers(128, 5));
    let mut outputs = [[0.0f32; 128], [1.0f32; 128]];
    for (engine, output) in [&mut first, &mut second].into_iter().zip(&mut outputs) {
        engine.batch(&[1], &[65]).unwrap();
        engine.plan.append(0, Append::new(&k, &v)).unwrap();
        engine.plan.attend(0, Attend::new(&q, output)).unwrap();
    }
    assert_eq!(outputs[0], outputs[1]);
    let refused = vec![0x7c; first.pool.read_block(0, 0).unwrap().len()];
    assert_fails(first.pool.write_block(0, 0, &refused), Status::Format, &["no encoder writes"]);
    assert_fails(first.pool.write_block(0, 0, &refused[1..]), Status::Argument, &["size"]);
}

#[test]
fn sizes_are_checked() {
    let cache = cached();
    let mut engine = Engine::new(&cache, 1);
    let (k, v, q, mut output) = (numbers(5 * 64, 1), numbers(5 * 64, 2), numbers(5 * 128, 3), vec![0.0f32; 5 * 128]);
    let refused = engine.plan.extend(0, Extend::new(&k, &v, &q, &mut output));
    assert_fails(refused, Status::State, &["plan has no batch"]);
    assert_fails(engine.batch(&[5], &[5, 5]), Status::Argument, &["query_starts has 2 elements, expected 3"]);
    assert_fails(engine.batch(&[5], &[4]), Status::Argument, &["lengths[0] is 4"]);
    let table = PoolBatch::new(&[0, 5], &[5], &[0]); // by default, rows are as long as the plan allows
    assert_fails(engine.plan.batch(table), Status::Argument, &["block_table has 1 elements, expected 8"]);
    let tails = PoolBatch::new(&[0, 5], &[5], &[0]).table_stride(1).tails(&[]);
    assert_fails(engine.plan.batch(tails), Status::Argument, &["tails has 0 elements, expected 1"]);

    engine.batch(&[5], &[5]).unwrap();
    let short = engine.plan.extend(0, Extend::new(&k, &v, &q[128..], &mut output));
    assert_fails(short, Status::Argument, &["q has 512 elements, expected 640"]);
    let counted = engine.plan.append(0, Append::new(&k, &v).token_counts(&[5]));
    assert_fails(counted, Status::Argument, &["token_counts is given"]);
    let turned = engine.plan.append(0, Append::new(&k, &v).rope_positions(&[0; 15]));
    assert_fails(turned, Status::Argument, &["rope_positions is given"]);
    assert_fails(engine.plan.append(2, Append::new(&k, &v)), Status::Argument, &["layer is 2"]);
    engine.plan.extend(0, Extend::new(&k, &v, &q, &mut output)).unwrap();

    let none = BlockRange::new(std::ptr::null_mut(), 1, 0);
    // SAFETY: all of these are refused.
    let new = |options| unsafe { Pool::new(&cache, options) };
    let one = new(PoolOptions::new(32, [none.clone()]));
    assert_fails(one, Status::Argument, &["ranges has 1 elements, expected 2: [n_layers, n_ranges]"]);
    let two = PoolOptions::new(32, [none.clone(), none]);
    assert_fails(new(two.clone().tails(3, &[])), Status::Argument, &["tails has 0 elements, expected 2"]);
    assert_fails(new(two), Status::Argument, &["no memory for the blocks of layer 0"]);
    assert_fails(cache.block_layout(0, 33), Status::Argument, &["block_tokens is 33"]);
}

#[test]
fn addresses_work_as_slices_do() {
    let cache = cached();
    let (mut engine, mut other) = (Engine::new(&cache, 1), Engine::new(&cache, 1));
    let (k, v, q) = (numbers(5 * 64, 1), numbers(5 * 64, 2), numbers(5 * 128, 3));
    let (mut expected, mut output) = (vec![0.0f32; 5 * 128], vec![1.0f32; 5 * 128]);
    other.batch(&[5], &[5]).unwrap();
    other.plan.extend(1, Extend::new(&k, &v, &q, &mut expected)).unwrap();
    let plan = &mut engine.plan;
    assert_eq!(plan.pool().raw(), engine.pool.raw());
    let (starts, lengths, table, tails) = ([0, 5], [5], [3], [2]);
    let batch = DevicePoolBatch::new(1, 5, starts.as_ptr(), lengths.as_ptr(), table.as_ptr());
    let (k, v, q) = (k.as_ptr().cast(), v.as_ptr().cast(), q.as_ptr().cast());
    let call = DeviceExtend::new(k, v, Dtype::F32, q, Dtype::F32, output.as_mut_ptr().cast(), Dtype::F32);
    // SAFETY: the arrays have these sizes.
    unsafe {
        plan.batch_device(batch.table_stride(1).tails(tails.as_ptr())).unwrap();
        plan.extend_device(1, call).unwrap();
    }
    assert_eq!(output, expected);
}
