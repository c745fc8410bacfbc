//! Measures the overhead of a call: appends a token to a tiny cache and attends with one query, in nanoseconds per
//! call.
use kvq::{Attend, Cache, CacheOptions, Context, ContextOptions, Policy, Sequence};
use std::time::Instant;

const CALLS: usize = 32;
const WARM_UP: usize = 200;
const BLOCKS: usize = 2000;

/// Median over blocks of calls; `prepare` runs before each block and is not timed.
fn median(mut prepare: impl FnMut() -> kvq::Result<()>, mut call: impl FnMut() -> kvq::Result<()>) -> kvq::Result<f64> {
    let mut times = Vec::with_capacity(BLOCKS);
    for block in 0..WARM_UP + BLOCKS {
        prepare()?;
        let begin = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        if block >= WARM_UP {
            times.push(begin.elapsed().as_nanos() as f64 / CALLS as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[BLOCKS / 2])
}

fn main() -> kvq::Result<()> {
    let context = Context::new(ContextOptions::new())?;
    let policy = Policy::load(&context, "fp16")?;
    let cache = Cache::new(&context, CacheOptions::new(1, 1, 1, 8), &policy)?;
    let sequence = std::cell::RefCell::new(Sequence::new(&cache)?);
    let (k, v, q) = ([0.25f32; 8], [0.5f32; 8], [1.0f32; 8]);
    let append = median(|| sequence.borrow_mut().truncate(0), || sequence.borrow_mut().append(0, &k, &v))?;

    let (sequence, mut output) = (sequence.into_inner(), [0.0f32; 8]);
    let attend = median(|| Ok(()), || cache.attend(0, &[&sequence], Attend::new(&q, &mut output)))?;
    println!("append {append:.0} attend {attend:.0}");
    Ok(())
}
