//! Hooks: called, kept alive, failing, panicking, and not allowed to call back.
#![deny(unsafe_op_in_unsafe_fn)]
mod common;
use common::*;
use kvq::{Attend, Cache, CacheOptions, Context, ContextOptions, HostAllocator, Matrix, Policy, QuantizeOptions};
use kvq::{Dtype, LogLevel, Sequence, Status};
use std::alloc::{alloc, dealloc, Layout};
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Counts {
    bytes: AtomicI64,
    fails: AtomicBool,
    panics: AtomicBool,
}

struct Counting(Arc<Counts>);

// SAFETY: the system's allocator does the work.
unsafe impl HostAllocator for Counting {
    fn allocate(&self, layout: Layout) -> *mut u8 {
        if self.0.panics.load(SeqCst) {
            panic!("no more memory");
        }
        if self.0.fails.load(SeqCst) {
            return std::ptr::null_mut();
        }
        self.0.bytes.fetch_add(layout.size() as i64, SeqCst);
        // SAFETY: kvq asks for more than 0 bytes.
        unsafe { alloc(layout) }
    }

    unsafe fn free(&self, memory: *mut u8, layout: Layout) {
        self.0.bytes.fetch_sub(layout.size() as i64, SeqCst);
        // SAFETY: the caller's word.
        unsafe { dealloc(memory, layout) }
    }
}

fn message_of(panic: Box<dyn std::any::Any + Send>) -> String {
    panic.downcast::<&str>().map_or_else(|_| "another panic".to_string(), |text| text.to_string())
}

#[test]
fn an_allocator_sees_every_byte_and_gets_it_back() {
    let counts = Arc::new(Counts::default());
    let context = Context::new(ContextOptions::new().allocator(Counting(counts.clone()))).unwrap();
    let cache = Cache::new(&context, CacheOptions::new(2, 4, 2, 16), None).unwrap();
    let sequence = filled(&cache, 100, 1);
    assert_eq!(counts.bytes.load(SeqCst) as u64, context.describe().unwrap().bytes);
    drop((context, cache));
    assert!(counts.bytes.load(SeqCst) > 0);
    drop(sequence);
    assert_eq!(counts.bytes.load(SeqCst), 0);
}

#[test]
fn an_allocator_that_fails_or_panics_is_a_failure_that_changes_nothing() {
    let counts = Arc::new(Counts::default());
    let context = Context::new(ContextOptions::new().allocator(Counting(counts.clone()))).unwrap();
    let cache = Cache::new(&context, CacheOptions::new(2, 4, 2, 16), None).unwrap();
    let mut sequence = filled(&cache, 10, 1);
    counts.fails.store(true, SeqCst);
    assert_fails(Sequence::new(&cache), Status::Memory, &[]);
    let x = numbers(100 * 32, 1);
    assert_fails(sequence.append(0, &x, &x), Status::Memory, &[]);
    counts.fails.store(false, SeqCst);
    counts.panics.store(true, SeqCst);
    let panic = catch_unwind(AssertUnwindSafe(|| sequence.append(0, &x, &x))).unwrap_err();
    assert_eq!(message_of(panic), "no more memory");
    let panic = catch_unwind(AssertUnwindSafe(|| Sequence::new(&cache))).unwrap_err();
    assert_eq!(message_of(panic), "no more memory");
    counts.panics.store(false, SeqCst);
    assert_eq!(sequence.length(0).unwrap(), 10);
    sequence.append(0, &x, &x).unwrap();
}

#[test]
fn the_librarys_loops_run_on_threads_of_the_program() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let hooked = exact().parallel_for(move |n, body| {
        counted.fetch_add(1, SeqCst);
        std::thread::scope(|scope| {
            for part in 0..3 {
                scope.spawn(move || (part..n).step_by(3).for_each(body));
            }
        });
    });
    let lazy = exact().parallel_for(|_, _| ()); // the library does what is left
    let outputs: Vec<Vec<f32>> = vec![exact(), hooked, lazy]
        .into_iter()
        .map(|options| {
            let context = Context::new(options).unwrap();
            let cache = Cache::new(&context, CacheOptions::new(1, 8, 4, 64), None).unwrap();
            let sequence = filled(&cache, 600, 1);
            let (q, mut output) = (numbers(8 * 64, 2), vec![0.0f32; 8 * 64]);
            cache.attend(0, &[&sequence], Attend::new(&q, &mut output)).unwrap();
            output
        })
        .collect();
    assert!(calls.load(SeqCst) > 0);
    assert_eq!(outputs[0], outputs[1]);
    assert_eq!(outputs[0], outputs[2]);
}

#[test]
fn what_the_programs_threads_are_given_is_the_work_itself() {
    static RESULT: AtomicPtr<f32> = AtomicPtr::new(std::ptr::null_mut());
    static DONE_BY_THEM: AtomicBool = AtomicBool::new(false);
    let size = 2048;
    let options = ContextOptions::new().parallel_for(move |n, body| {
        std::thread::scope(|scope| drop(scope.spawn(|| (0..n).for_each(body))));
        let result = RESULT.load(SeqCst);
        // SAFETY: NULL, or this many numbers that nobody writes before the hook returns.
        if !result.is_null() && unsafe { std::slice::from_raw_parts(result, size) }.iter().all(|x| x.is_finite()) {
            DONE_BY_THEM.store(true, SeqCst);
        }
    });
    let context = Context::new(options).unwrap();
    let w = numbers(size * size, 1);
    let matrix = Matrix::quantize(&context, QuantizeOptions::new(), &w, size, size).unwrap();
    let mut y = vec![f32::NAN; size];
    RESULT.store(y.as_mut_ptr(), SeqCst);
    // SAFETY: on a CPU the context's memory is the program's, and the vectors have these sizes.
    unsafe { matrix.linear_device(w.as_ptr().cast(), 1, y.as_mut_ptr().cast(), Dtype::F32) }.unwrap();
    assert!(DONE_BY_THEM.load(SeqCst));
}

#[test]
fn a_panic_in_a_loop_goes_on_after_the_call_which_was_done() {
    let context = Context::new(ContextOptions::new().parallel_for(|_, body| {
        body(0);
        panic!("a thread is gone");
    }))
    .unwrap();
    let cache = Cache::new(&context, CacheOptions::new(1, 8, 4, 64), None).unwrap();
    let x = numbers(600 * 4 * 64, 1);
    let mut sequence = Sequence::new(&cache).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| sequence.append(0, &x, &x))).unwrap_err();
    assert_eq!(message_of(panic), "a thread is gone");
    assert_eq!(sequence.length(0).unwrap(), 600);
}

#[test]
fn a_log_hook_is_told_and_its_panic_ends_what_was_made() {
    let (messages, released) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (heard, told) = (messages.clone(), released.clone());
    let context = Context::new(
        ContextOptions::new().log(move |level, text| heard.lock().unwrap().push((level, text.to_string()))),
    )
    .unwrap();
    let isa = context.describe().unwrap().isa;
    assert!(messages.lock().unwrap().iter().any(|(level, text)| *level == LogLevel::Info && text.contains(&isa)));
    let options = ContextOptions::new().log(|_, _| panic!("no paper")).released(move || told.store(true, SeqCst));
    let panic = catch_unwind(AssertUnwindSafe(|| Context::new(options))).unwrap_err();
    assert_eq!(message_of(panic), "no paper");
    assert!(released.load(SeqCst));
}

#[test]
fn a_panic_while_something_is_dropped_is_raised_by_the_next_call() {
    struct Unwilling;
    // SAFETY: the system's allocator does the work.
    unsafe impl HostAllocator for Unwilling {
        fn allocate(&self, layout: Layout) -> *mut u8 {
            // SAFETY: kvq asks for more than 0 bytes.
            unsafe { alloc(layout) }
        }

        unsafe fn free(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: the caller's word.
            unsafe { dealloc(memory, layout) };
            panic!("given back");
        }
    }
    let context = Context::new(ContextOptions::new().allocator(Unwilling));
    let context = context.unwrap_or_else(|error| panic!("{error}"));
    drop(Policy::load(&context, "fp16"));
    let panic = catch_unwind(AssertUnwindSafe(|| context.describe())).unwrap_err();
    assert_eq!(message_of(panic), "given back");
    context.describe().unwrap();
}

#[test]
fn released_comes_once_and_last() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (during, after) = (events.clone(), events.clone());
    struct Told(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("closure dropped");
        }
    }
    let told = Told(during);
    let context = Context::new(
        ContextOptions::new()
            .log(move |_, _| drop(told.0.lock()))
            .released(move || after.lock().unwrap().push("released")),
    )
    .unwrap();
    let policy = Policy::load(&context, "fp16").unwrap();
    drop(context);
    assert!(events.lock().unwrap().is_empty());
    drop(policy);
    assert_eq!(*events.lock().unwrap(), ["closure dropped", "released"]);
}

#[test]
fn hooks_of_a_context_that_could_not_be_made_are_dropped_without_a_word() {
    let alive = Arc::new(());
    let (held, released) = (alive.clone(), Arc::new(AtomicBool::new(false)));
    let told = released.clone();
    let options = ContextOptions::new()
        .cpu_isa("abacus")
        .log(move |_, _| assert_eq!(*held, ()))
        .released(move || told.store(true, SeqCst));
    assert_fails(Context::new(options), Status::Unsupported, &["abacus"]);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(!released.load(SeqCst));
}

#[test]
fn a_hook_that_uses_kvq_gets_an_error_and_what_it_drops_is_destroyed_by_another_thread() {
    let context = context();
    let cache = Cache::new(&context, CacheOptions::new(1, 1, 1, 16), None).unwrap();
    let mut sequence = Some(Sequence::new(&cache).unwrap());
    let mut seen = Vec::new();
    let mut progress = |_| {
        if let Some(sequence) = sequence.take() {
            seen.push(sequence.length(0).unwrap_err());
            seen.push(cache.usage().unwrap_err());
            seen.push(Sequence::new(&cache).err().unwrap());
        }
        ControlFlow::Continue(())
    };
    let w = numbers(64 * 64, 1);
    Matrix::quantize(&context, QuantizeOptions::new().progress(&mut progress), &w, 64, 64).unwrap();
    assert_eq!(seen.len(), 3);
    for error in seen {
        assert_eq!((error.status(), error.message()), (Status::State, "a hook may not use kvq"));
    }
    cache.usage().unwrap();
}

#[test]
fn progress_rises_can_end_the_call_and_may_panic() {
    let context = context();
    let w = numbers(256 * 256, 1);
    let quantize = |hook: &mut (dyn FnMut(f64) -> ControlFlow<()> + Send)| {
        Matrix::quantize(&context, QuantizeOptions::new().scheme("tcq-2").progress(hook), &w, 256, 256)
    };
    let mut told = Vec::new();
    quantize(&mut |done| {
        told.push(done);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(!told.is_empty() && told.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_fails(quantize(&mut |_| ControlFlow::Break(())), Status::Cancelled, &[]);
    let panic = catch_unwind(AssertUnwindSafe(|| quantize(&mut |_| panic!("enough")))).unwrap_err();
    assert_eq!(message_of(panic), "enough");
}
