//! Calls of C functions: errors, handles, panics in hooks, and calls that hooks may not make.
use crate::{Error, Result, Status};
use kvq_sys as sys;
use std::any::Any;
use std::cell::Cell;
use std::mem::{self, size_of, MaybeUninit};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
    static HOOKS: Cell<u32> = const { Cell::new(0) };
}

type Payload = Box<dyn Any + Send>;

/// Panics in a context's hooks that have not been resumed yet.
#[derive(Default)]
pub(crate) struct Panics {
    waiting: AtomicUsize,
    /// With the thread whose call resumes it; none if the hook ran outside of calls, then the next call does.
    caught: Mutex<Vec<(Option<ThreadId>, Payload)>>,
}

impl Panics {
    fn keep(&self, payload: Payload) {
        let thread = if CALLS.with(Cell::get) > 0 { Some(thread::current().id()) } else { None };
        let mut caught = self.caught.lock().unwrap_or_else(PoisonError::into_inner);
        if caught.iter().any(|one| one.0 == thread) {
            return discard(payload); // only the first panic of a call is resumed
        }
        caught.push((thread, payload));
        self.waiting.store(caught.len(), Ordering::Release);
    }

    /// Resumes the panic of a hook that ran in the call that has just returned, or outside of calls.
    pub(crate) fn raise(&self) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let this = thread::current().id();
        let mut caught = self.caught.lock().unwrap_or_else(PoisonError::into_inner);
        let found = caught.iter().position(|one| one.0.map_or(true, |thread| thread == this));
        let payload = found.map(|at| caught.remove(at).1);
        self.waiting.store(caught.len(), Ordering::Release);
        drop(caught);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Runs a hook: keeps its panic and returns `failure` to C.
    pub(crate) fn hook<R>(&self, failure: R, hook: impl FnOnce() -> R) -> R {
        inside_hook(hook).unwrap_or_else(|payload| {
            self.keep(payload);
            failure
        })
    }
}

/// Drops the payload of a hook's panic, which may panic again.
pub(crate) fn discard(payload: Payload) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
}

/// Runs a hook; its thread may not use kvq meanwhile.
pub(crate) fn inside_hook<R>(hook: impl FnOnce() -> R) -> thread::Result<R> {
    HOOKS.with(|hooks| hooks.set(hooks.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(hook));
    HOOKS.with(|hooks| hooks.set(hooks.get() - 1));
    result
}

pub(crate) fn is_inside_hook() -> bool {
    HOOKS.with(Cell::get) > 0
}

/// Refuses calls from hooks, before they could wait for a lock that their thread holds.
pub(crate) fn require_no_hook() -> Result<()> {
    if is_inside_hook() {
        return Err(Error::new(Status::State, "a hook may not use kvq"));
    }
    Ok(())
}

/// Destroys an object; inside a hook, which may not do so, on another thread.
pub(crate) fn destroy(action: impl FnOnce() + Send + 'static) {
    if is_inside_hook() {
        // If no thread can be started the object leaks, which is safer than destroying it inside a hook.
        drop(thread::Builder::new().spawn(action));
    } else {
        action();
    }
}

/// Calls a function that takes an error last; the panic of a hook waits for the next call.
pub(crate) fn call_without_panics(function: impl FnOnce(*mut sys::kvq_error) -> sys::kvq_status) -> Result<()> {
    require_no_hook()?;
    let mut error = MaybeUninit::<sys::kvq_error>::uninit();
    // SAFETY: the struct is writable and has this size.
    unsafe { sys::kvq_error_init(error.as_mut_ptr(), size_of::<sys::kvq_error>()) };
    CALLS.with(|calls| calls.set(calls.get() + 1));
    let status = function(error.as_mut_ptr());
    CALLS.with(|calls| calls.set(calls.get() - 1));
    if status == sys::KVQ_OK {
        return Ok(());
    }
    // SAFETY: kvq_error_init has filled it.
    Err(Error::from_raw(status, unsafe { error.assume_init_ref() }))
}

/// Calls a function that takes an error last, and resumes panics of hooks.
pub(crate) fn call(panics: &Panics, function: impl FnOnce(*mut sys::kvq_error) -> sys::kvq_status) -> Result<()> {
    let result = call_without_panics(function);
    panics.raise();
    result
}

/// Calls a function that creates a handle.
pub(crate) fn create<T: Destroy>(
    panics: &Panics,
    function: impl FnOnce(*mut *mut T, *mut sys::kvq_error) -> sys::kvq_status,
) -> Result<Handle<T>> {
    create_or(panics, function, || ())
}

/// Like `create`; calls `failed` if there is no handle, before a panic is resumed.
pub(crate) fn create_or<T: Destroy>(
    panics: &Panics,
    function: impl FnOnce(*mut *mut T, *mut sys::kvq_error) -> sys::kvq_status,
    failed: impl FnOnce(),
) -> Result<Handle<T>> {
    let mut made = ptr::null_mut();
    let result = call_without_panics(|error| function(&mut made, error));
    let handle = NonNull::new(made).map(Handle); // owned before a panic is resumed
    if handle.is_none() {
        failed();
    }
    panics.raise();
    result?;
    handle.ok_or_else(|| Error::new(Status::Internal, "the library has made no handle"))
}

/// Calls a function that creates `n` handles, or none.
pub(crate) fn create_all<T: Destroy>(
    panics: &Panics,
    n: usize,
    function: impl FnOnce(*mut *mut T, *mut sys::kvq_error) -> sys::kvq_status,
) -> Result<Vec<Handle<T>>> {
    let mut made = vec![ptr::null_mut(); n];
    let result = call_without_panics(|error| function(made.as_mut_ptr(), error));
    let handles = made.into_iter().filter_map(NonNull::new).map(Handle).collect(); // owned before a panic is resumed
    panics.raise();
    result.map(|()| handles)
}

/// Calls a function that fills a struct.
///
/// # Safety
/// `R` must be a struct of kvq.h that begins with `struct_size`.
pub(crate) unsafe fn fill<R>(
    panics: &Panics,
    function: impl FnOnce(*mut R, *mut sys::kvq_error) -> sys::kvq_status,
) -> Result<R> {
    let mut info = MaybeUninit::<R>::zeroed();
    // SAFETY: every struct of kvq.h begins with its size as a 32-bit number.
    unsafe { info.as_mut_ptr().cast::<u32>().write(size_of::<R>() as u32) };
    call(panics, |error| function(info.as_mut_ptr(), error))?;
    // SAFETY: zeros are valid in all structs of kvq.h.
    Ok(unsafe { info.assume_init() })
}

/// Returns options with the library's defaults.
///
/// # Safety
/// `init` must be the function of kvq.h that fills `R`.
pub(crate) unsafe fn defaults<R>(init: unsafe extern "C" fn(*mut R, usize)) -> R {
    let mut options = MaybeUninit::<R>::zeroed();
    // SAFETY: the struct is writable and has this size, and zeros are valid in all structs of kvq.h.
    unsafe {
        init(options.as_mut_ptr(), size_of::<R>());
        options.assume_init()
    }
}

/// Calls a function that writes a file: once for its size, and once for its bytes.
pub(crate) fn save(
    panics: &Panics,
    mut function: impl FnMut(*mut u8, usize, *mut usize, *mut sys::kvq_error) -> sys::kvq_status,
) -> Result<Vec<u8>> {
    let mut size = 0;
    call(panics, |error| function(ptr::null_mut(), 0, &mut size, error))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| Error::new(Status::Memory, format!("no memory for {size} bytes")))?;
    call(panics, |error| function(bytes.as_mut_ptr(), bytes.capacity(), &mut size, error))?;
    // SAFETY: the library has written `size` bytes, at most the capacity.
    unsafe { bytes.set_len(size) };
    Ok(bytes)
}

/// Destruction of a handle.
pub(crate) trait Destroy: 'static {
    /// # Safety
    /// `handle` must come from the library and no longer be in use.
    unsafe fn destroy(handle: *mut Self);
}

macro_rules! destroyed_by {
    ($($handle:ident $function:ident;)*) => {
        $(impl Destroy for sys::$handle {
            unsafe fn destroy(handle: *mut Self) {
                // SAFETY: guaranteed by the caller.
                unsafe { sys::$function(handle) }
            }
        })*
    };
}

destroyed_by! {
    kvq_context kvq_context_destroy;
    kvq_policy kvq_policy_destroy;
    kvq_centres kvq_centres_destroy;
    kvq_codebook kvq_codebook_destroy;
    kvq_router kvq_router_destroy;
    kvq_cache kvq_cache_destroy;
    kvq_sequence kvq_sequence_destroy;
    kvq_pool kvq_pool_destroy;
    kvq_pool_plan kvq_pool_plan_destroy;
    qp_matrix qp_matrix_destroy;
}

/// A handle that is destroyed with its owner.
pub(crate) struct Handle<T: Destroy>(NonNull<T>);

// SAFETY: any thread may use a handle; its owner keeps to the rules on exclusive use.
unsafe impl<T: Destroy> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Destroy> Sync for Handle<T> {}

impl<T: Destroy> Handle<T> {
    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Destroy> Drop for Handle<T> {
    fn drop(&mut self) {
        // An integer, since pointers are not Send.
        let address = self.get() as usize;
        // SAFETY: this was the only owner of the handle.
        destroy(move || unsafe { T::destroy(address as *mut T) });
    }
}
