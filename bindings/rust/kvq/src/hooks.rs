//! A context's hooks: closures of the program that the library calls.
use crate::call::{discard, inside_hook, Panics};
use crate::generated::docs::header;
use crate::LogLevel;
use kvq_sys as sys;
use std::alloc::Layout;
use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::Arc;

#[doc = header!(kvq_allocate_hook)]
///
/// A panic counts as NULL.
///
/// # Safety
/// `allocate` must return NULL or memory of this layout that nothing else uses until it is freed.
pub unsafe trait HostAllocator: Send + Sync + 'static {
    /// Returns memory of this layout, or NULL.
    fn allocate(&self, layout: Layout) -> *mut u8;

    /// Frees memory.
    ///
    /// # Safety
    /// `allocate` must have returned `memory` for the same layout.
    unsafe fn free(&self, memory: *mut u8, layout: Layout);
}

#[doc = header!(kvq_device_allocate_hook)]
///
/// A panic counts as NULL.
///
/// # Safety
/// `allocate` must return NULL or device memory that nothing else uses until it is freed.
pub unsafe trait DeviceAllocator: Send + Sync + 'static {
    /// Returns `bytes` of device memory, aligned to 256 bytes, for use in the order of `stream`; or NULL.
    fn allocate(&self, bytes: usize, stream: *mut c_void) -> *mut c_void;

    /// Frees memory.
    #[doc = header!(kvq_device_free_hook)]
    ///
    /// # Safety
    /// `allocate` must have returned `memory` for as many bytes.
    unsafe fn free(&self, memory: *mut c_void, bytes: usize, stream: *mut c_void);
}

type Log = dyn Fn(LogLevel, &str) + Send + Sync;
type ParallelFor = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync;

/// Lives from the creation of the context until `released`.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) allocator: Option<Box<dyn HostAllocator>>,
    pub(crate) device_allocator: Option<Box<dyn DeviceAllocator>>,
    pub(crate) log: Option<Box<Log>>,
    pub(crate) parallel_for: Option<Box<ParallelFor>>,
    pub(crate) released: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) panics: Arc<Panics>,
}

impl Hooks {
    /// Installs the hooks that are set. Returns the state that `released` frees; NULL without hooks.
    pub(crate) fn enter(self, options: &mut sys::kvq_context_options) -> *mut Hooks {
        let (host, device) = (self.allocator.is_some(), self.device_allocator.is_some());
        if !(host || device || self.log.is_some() || self.parallel_for.is_some() || self.released.is_some()) {
            return ptr::null_mut();
        }
        options.allocate = host.then_some(allocate as _);
        options.free = host.then_some(free as _);
        options.device_allocate = device.then_some(device_allocate as _);
        options.device_free = device.then_some(device_free as _);
        options.log = self.log.is_some().then_some(log as _);
        options.parallel_for = self.parallel_for.is_some().then_some(parallel_for as _);
        options.released = Some(released);
        let hooks = Box::into_raw(Box::new(self));
        options.allocator_user = hooks.cast();
        options.device_allocator_user = hooks.cast();
        options.log_user = hooks.cast();
        options.parallel_for_user = hooks.cast();
        options.released_user = hooks.cast();
        hooks
    }
}

/// Runs a hook; a panic counts as `failure`.
///
/// # Safety
/// `user` must come from `Hooks::enter`, and `released` must not have been called.
unsafe fn guarded<R>(user: *mut c_void, failure: R, hook: impl FnOnce(&Hooks) -> R) -> R {
    // SAFETY: guaranteed by the caller.
    let hooks = unsafe { &*user.cast::<Hooks>() };
    hooks.panics.hook(failure, || hook(hooks))
}

// SAFETY in the functions below: the library passes the pointer it was given, memory that it got from the hook with the
// same numbers, and NUL-terminated strings.

unsafe extern "C" fn allocate(user: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    let hook = |hooks: &Hooks| match (&hooks.allocator, Layout::from_size_align(bytes, alignment)) {
        (Some(allocator), Ok(layout)) => allocator.allocate(layout).cast(),
        _ => ptr::null_mut(),
    };
    // SAFETY: see above.
    unsafe { guarded(user, ptr::null_mut(), hook) }
}

unsafe extern "C" fn free(user: *mut c_void, memory: *mut c_void, bytes: usize, alignment: usize) {
    let hook = |hooks: &Hooks| {
        if let (Some(allocator), Ok(layout)) = (&hooks.allocator, Layout::from_size_align(bytes, alignment)) {
            // SAFETY: see above.
            unsafe { allocator.free(memory.cast(), layout) };
        }
    };
    // SAFETY: see above.
    unsafe { guarded(user, (), hook) }
}

unsafe extern "C" fn device_allocate(user: *mut c_void, bytes: usize, stream: *mut c_void) -> *mut c_void {
    let hook = |hooks: &Hooks| hooks.device_allocator.as_ref().map_or(ptr::null_mut(), |it| it.allocate(bytes, stream));
    // SAFETY: see above.
    unsafe { guarded(user, ptr::null_mut(), hook) }
}

unsafe extern "C" fn device_free(user: *mut c_void, memory: *mut c_void, bytes: usize, stream: *mut c_void) {
    // SAFETY: see above.
    let hook = |hooks: &Hooks| hooks.device_allocator.iter().for_each(|it| unsafe { it.free(memory, bytes, stream) });
    // SAFETY: see above.
    unsafe { guarded(user, (), hook) }
}

unsafe extern "C" fn log(user: *mut c_void, level: sys::kvq_log_level, message: *const c_char) {
    // SAFETY: see above.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let hook = |hooks: &Hooks| hooks.log.iter().for_each(|log| log(LogLevel::from_code(level), &message));
    // SAFETY: see above.
    unsafe { guarded(user, (), hook) }
}

unsafe extern "C" fn parallel_for(
    user: *mut c_void,
    n: i32,
    body: sys::kvq_parallel_body,
    argument: *mut c_void,
) -> i32 {
    /// Argument of a loop body, which any thread may pass on.
    struct Argument(*mut c_void);
    // SAFETY: the library allows it.
    unsafe impl Sync for Argument {}

    let argument = &Argument(argument);
    let run = |index: usize| {
        if let (Some(body), Ok(index)) = (body, i32::try_from(index)) {
            // SAFETY: the library takes any index, and calls beyond n do nothing; the borrow ends with the hook.
            unsafe { body(argument.0, index) };
        }
    };
    let hook = |hooks: &Hooks| {
        hooks.parallel_for.iter().for_each(|parallel_for| parallel_for(n as usize, &run));
        0
    };
    // SAFETY: see above.
    unsafe { guarded(user, 1, hook) }
}

unsafe extern "C" fn released(user: *mut c_void) {
    // SAFETY: the library passes the pointer it was given, once, and uses no hook afterwards.
    let mut hooks = unsafe { Box::from_raw(user.cast::<Hooks>()) };
    let released = hooks.released.take();
    let result = catch_unwind(AssertUnwindSafe(|| {
        drop(hooks);
        if let Some(released) = released {
            released();
        }
    }));
    result.unwrap_or_else(discard); // no later call of this context could resume a panic
}

pub(crate) type ProgressHook<'a> = dyn FnMut(f64) -> std::ops::ControlFlow<()> + Send + 'a;

/// A progress hook for one call; the calling thread runs it.
pub(crate) struct Progress<'a, 'b> {
    hook: Option<&'a mut ProgressHook<'b>>,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl<'a, 'b> Progress<'a, 'b> {
    pub(crate) fn new(hook: Option<&'a mut ProgressHook<'b>>) -> Self {
        Progress { hook, panic: None }
    }

    pub(crate) fn function(&self) -> sys::kvq_progress_hook {
        self.hook.as_ref().and(Some(progress))
    }

    pub(crate) fn user(&mut self) -> *mut c_void {
        (self as *mut Self).cast()
    }

    /// Resumes a panic of the hook after the call.
    pub(crate) fn raise(self) {
        if let Some(payload) = self.panic {
            std::panic::resume_unwind(payload);
        }
    }
}

unsafe extern "C" fn progress(user: *mut c_void, done: f64) -> i32 {
    // SAFETY: `user` is a Progress that outlives the call, and only this thread uses it.
    let progress = unsafe { &mut *user.cast::<Progress<'_, '_>>() };
    let hook = match &mut progress.hook {
        Some(hook) if progress.panic.is_none() => hook,
        _ => return 1,
    };
    match inside_hook(|| hook(done)) {
        Ok(flow) => flow.is_break() as i32,
        Err(payload) => {
            progress.panic = Some(payload);
            1
        }
    }
}
