//! Contexts: memory, threads, limits and the device.
use crate::call::{self, create, defaults, fill, Handle, Panics};
use crate::convert::{c_string, int, text_at};
use crate::error::require_version;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::hooks::Hooks;
use crate::object::{debug, default_is_new, optional, Raw};
use crate::{ContextInfo, Device, DeviceAllocator, DeviceInfo, Error, FileKind, HostAllocator, LogLevel, Result};
use kvq_sys as sys;
use std::fmt;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

#[doc = header!(kvq_context_options)]
///
/// Hooks are closures, which live until the context and all objects made from it are freed. A panic in a hook is caught
/// and counts as its failure; it resumes when the call returns, or in the next call on this context if the hook ran on
/// another thread or while an object was dropped. Calls from a hook return
/// [`Status::State`](crate::Status::State).
pub struct ContextOptions {
    raw: Raw<sys::kvq_context_options>,
    cpu_isa: Option<String>,
    plugin: Option<String>,
    hooks: Hooks,
}

default_is_new!(ContextOptions);

/// Setters of hooks, with their comments.
macro_rules! hooks {
    ($($name:ident($type:ty) = $text:expr;)*) => {
        $(#[doc = $text]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.hooks.$name = Some(Box::new($name));
            self
        })*
    };
}

impl ContextOptions {
    setters!(kvq_context_options);

    /// Returns the library's defaults: the CPU, one thread, no hooks.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_context_options_init) });
        ContextOptions { raw, cpu_isa: None, plugin: None, hooks: Hooks::default() }
    }

    optional!(kvq_context_options, cpu_isa: impl Into<String> = cpu_isa.into());

    #[doc = header!(kvq_context_options, plugin)]
    ///
    /// # Safety
    /// The file must be a plug-in of kvq: its code is run.
    #[must_use]
    pub unsafe fn plugin(mut self, path: impl Into<String>) -> Self {
        self.plugin = Some(path.into());
        self
    }

    #[doc = header!(kvq_context_options, stream)]
    ///
    /// # Safety
    /// The stream must be of this device and live as long as the context, or until another one is set.
    #[must_use]
    pub unsafe fn stream(mut self, stream: *mut c_void) -> Self {
        self.raw.stream = stream;
        self
    }

    hooks! {
        allocator(impl HostAllocator) = header!(kvq_context_options, allocate);
        device_allocator(impl DeviceAllocator) = header!(kvq_context_options, device_allocate);
        log(impl Fn(LogLevel, &str) + Send + Sync + 'static) = header!(kvq_log_hook);
        parallel_for(impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static) = header!(kvq_parallel_for_hook);
        released(impl FnOnce() + Send + 'static) = header!(kvq_released_hook);
    }
}

impl fmt::Debug for ContextOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ContextOptions").field("cpu_isa", &self.cpu_isa).field("plugin", &self.plugin).finish()
    }
}

#[doc = header!(kvq_context)]
///
/// Clones are the same context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    handle: Handle<sys::kvq_context>,
    panics: Arc<Panics>,
    device: Device,
}

impl Context {
    #[doc = header!(kvq_context_create)]
    pub fn new(options: ContextOptions) -> Result<Self> {
        require_version()?;
        let ContextOptions { mut raw, cpu_isa, plugin, hooks } = options;
        let cpu_isa = cpu_isa.map(|name| c_string(&name, "cpu_isa")).transpose()?;
        let plugin = plugin.map(|path| c_string(&path, "plugin")).transpose()?;
        raw.cpu_isa = cpu_isa.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        raw.plugin = plugin.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        let panics = hooks.panics.clone();
        let hooks = hooks.enter(&mut raw);
        // SAFETY: options and strings live until the call returns, hooks until `released`.
        let made = call::create_or(
            &panics,
            |result, error| unsafe { sys::kvq_context_create(&*raw, result, error) },
            || {
                if !hooks.is_null() {
                    // SAFETY: there is no context, so `released` has not been and will not be called.
                    drop(unsafe { Box::from_raw(hooks) });
                }
            },
        );
        let mut inner = Inner { handle: made?, panics, device: Device::Cpu };
        inner.device = inner.describe()?.device;
        Ok(Context(Arc::new(inner)))
    }

    #[doc = header!(kvq_context_describe)]
    pub fn describe(&self) -> Result<ContextInfo> {
        self.0.describe()
    }

    #[doc = header!(kvq_context_set_stream)]
    ///
    /// # Safety
    /// The stream must be of this device and live until another one is set or the context is freed; no other thread may
    /// use the context or objects made from it at the same time.
    pub unsafe fn set_stream(&self, stream: *mut c_void) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.call(|error| unsafe { sys::kvq_context_set_stream(self.raw(), stream, error) })
    }

    #[doc = header!(kvq_file_type)]
    pub fn file_type(&self, bytes: &[u8]) -> Result<FileKind> {
        let mut kind = sys::KVQ_FILE_UNKNOWN;
        // SAFETY: the slice has this length and lives until the call returns.
        self.call(|error| unsafe {
            sys::kvq_file_type(self.raw(), bytes.as_ptr().cast(), bytes.len(), &mut kind, error)
        })?;
        Ok(FileKind::from_code(kind))
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::kvq_context {
        self.0.handle.get()
    }

    pub(crate) fn panics(&self) -> &Panics {
        &self.0.panics
    }

    pub(crate) fn call(&self, function: impl FnOnce(*mut sys::kvq_error) -> sys::kvq_status) -> Result<()> {
        call::call(self.panics(), function)
    }

    pub(crate) fn create<T: call::Destroy>(
        &self,
        function: impl FnOnce(*mut *mut T, *mut sys::kvq_error) -> sys::kvq_status,
    ) -> Result<Handle<T>> {
        create(self.panics(), function)
    }

    /// Refuses host slices if the library expects device memory.
    pub(crate) fn require_host(&self, function: &str) -> Result<()> {
        if self.0.device == Device::Cpu {
            return Ok(());
        }
        Err(Error::argument(format!(
            "{function} takes host memory, but the context computes on a GPU: see {function}_device"
        )))
    }
}

impl Inner {
    fn describe(&self) -> Result<ContextInfo> {
        // SAFETY: kvq_context_describe fills this struct, whose strings live as long as the handle.
        unsafe {
            let raw = fill(&self.panics, |info, error| sys::kvq_context_describe(self.handle.get(), info, error))?;
            Ok(ContextInfo::from_raw(&raw))
        }
    }
}

debug!(Context, it => it.0.device);

#[doc = header!(kvq_device_describe)]
pub fn device_describe(device: Device, index: usize) -> Result<DeviceInfo> {
    describe_device(device, index, ptr::null())
}

/// Like [`device_describe`], with a plug-in from another path.
///
/// # Safety
/// The file must be a plug-in of kvq: its code is run.
pub unsafe fn device_describe_by(device: Device, index: usize, plugin: &str) -> Result<DeviceInfo> {
    describe_device(device, index, c_string(plugin, "plugin")?.as_ptr())
}

fn describe_device(device: Device, index: usize, plugin: *const std::os::raw::c_char) -> Result<DeviceInfo> {
    require_version()?;
    // SAFETY: kvq_device_describe fills this struct; the path is NULL or a string.
    let raw = unsafe {
        fill(&Panics::default(), |info, error| {
            sys::kvq_device_describe(device.code(), int(index), plugin, info, error)
        })?
    };
    Ok(DeviceInfo::from_raw(&raw))
}

#[doc = header!(kvq_cpu_isa_name)]
///
/// Returns all of them, best first.
pub fn cpu_isas() -> Vec<String> {
    // SAFETY: names are never freed.
    unsafe { (0..sys::kvq_cpu_isa_count()).map(|index| text_at(sys::kvq_cpu_isa_name(index))).collect() }
}
