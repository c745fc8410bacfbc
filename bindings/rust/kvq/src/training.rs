//! Training of codebooks, centres and routers, which may change in a minor version.
use crate::call::{defaults, Handle};
use crate::convert::{c_string, int};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::hooks::{Progress, ProgressHook};
use crate::shape::{self, pointer_of, rows_of};
use crate::{CacheOptions, Centres, Codebook, Context, Element, Policy, Result, Router};
use kvq_sys as sys;
use std::ptr;

macro_rules! options {
    ($name:ident, $raw:ident) => {
        #[doc = header!($raw)]
        #[derive(Clone)]
        pub struct $name {
            raw: sys::$raw,
            note: Option<String>,
        }

        impl $name {
            setters!($raw);

            #[doc = header!($raw, note)]
            #[must_use]
            pub fn note(mut self, note: impl Into<String>) -> Self {
                self.note = Some(note.into());
                self
            }

            /// Calls `function` with the struct in C, which is valid until it returns.
            fn with_raw<R>(&self, function: impl FnOnce(&sys::$raw) -> Result<R>) -> Result<R> {
                let mut raw = self.raw;
                let note = self.note.as_ref().map(|note| c_string(note, "note")).transpose()?;
                raw.note = note.as_ref().map_or(ptr::null(), |note| note.as_ptr());
                function(&raw)
            }
        }
    };
}

options!(CodebookTrainerOptions, kvq_codebook_trainer_options);
options!(CentresTrainerOptions, kvq_centres_trainer_options);
options!(RouterTrainerOptions, kvq_router_trainer_options);

impl CodebookTrainerOptions {
    /// The library's defaults for a model of this shape.
    pub fn new(n_layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = unsafe { defaults(sys::kvq_codebook_trainer_options_init) };
        let options = CodebookTrainerOptions { raw, note: None };
        options.n_layers(n_layers).kv_heads(kv_heads).head_dim(head_dim)
    }
}

impl CentresTrainerOptions {
    /// The library's defaults for a model of this shape.
    pub fn new(n_layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = unsafe { defaults(sys::kvq_centres_trainer_options_init) };
        let options = CentresTrainerOptions { raw, note: None };
        options.n_layers(n_layers).kv_heads(kv_heads).head_dim(head_dim)
    }
}

impl Default for RouterTrainerOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl RouterTrainerOptions {
    /// The library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        RouterTrainerOptions { raw: unsafe { defaults(sys::kvq_router_trainer_options_init) }, note: None }
    }
}

#[doc = header!(kvq_codebook_trainer)]
pub struct CodebookTrainer {
    handle: Handle<sys::kvq_codebook_trainer>,
    context: Context,
    row: usize,
}

impl CodebookTrainer {
    #[doc = header!(kvq_codebook_trainer_create)]
    pub fn new(context: &Context, options: CodebookTrainerOptions) -> Result<Self> {
        let handle = options.with_raw(|raw| {
            // SAFETY: the options live until the call returns.
            context
                .create(|result, error| unsafe { sys::kvq_codebook_trainer_create(context.raw(), raw, result, error) })
        })?;
        let row = options.raw.kv_heads as usize * options.raw.head_dim as usize;
        Ok(CodebookTrainer { handle, context: context.clone(), row })
    }

    #[doc = header!(kvq_codebook_trainer_resume)]
    pub fn resume(&mut self, codebook: &Codebook) -> Result<()> {
        // SAFETY: the trainer is borrowed exclusively, the codebook never changes.
        self.context.call(|error| unsafe { sys::kvq_codebook_trainer_resume(self.handle.get(), codebook.raw(), error) })
    }

    #[doc = header!(kvq_codebook_trainer_add)]
    pub fn add<T: Element>(&mut self, layer: usize, k: Option<&[T]>, v: Option<&[T]>) -> Result<()> {
        let given = k.or(v).unwrap_or(&[]).len();
        let n = rows_of(if k.is_some() { "k" } else { "v" }, given, self.row, "[n, kv_heads, head_dim]")?;
        if let Some(v) = v {
            shape::require("v", v.len(), given as u128, "as many as k")?;
        }
        let (k, v) = (pointer_of(k).cast(), pointer_of(v).cast());
        // SAFETY: the slices have these lengths, and the trainer is borrowed exclusively.
        self.context.call(|error| unsafe {
            sys::kvq_codebook_trainer_add(self.handle.get(), int(layer), int(n), k, v, T::DTYPE.code(), error)
        })
    }

    #[doc = header!(kvq_codebook_trainer_run)]
    pub fn run(&mut self, layer: usize, progress: Option<&mut ProgressHook<'_>>) -> Result<()> {
        let mut progress = Progress::new(progress);
        let (hook, user) = (progress.function(), progress.user());
        // SAFETY: the hook lives until the call returns, and the trainer is borrowed exclusively.
        let result = self
            .context
            .call(|error| unsafe { sys::kvq_codebook_trainer_run(self.handle.get(), int(layer), hook, user, error) });
        progress.raise();
        result
    }

    #[doc = header!(kvq_codebook_trainer_result)]
    pub fn result(&self) -> Result<Codebook> {
        // SAFETY: the trainer is only read.
        let handle = self
            .context
            .create(|result, error| unsafe { sys::kvq_codebook_trainer_result(self.handle.get(), result, error) })?;
        Ok(Codebook::of(handle, &self.context))
    }
}

#[doc = header!(kvq_centres_trainer)]
pub struct CentresTrainer {
    handle: Handle<sys::kvq_centres_trainer>,
    context: Context,
    row: usize,
}

impl CentresTrainer {
    #[doc = header!(kvq_centres_trainer_create)]
    pub fn new(context: &Context, options: CentresTrainerOptions) -> Result<Self> {
        let handle = options.with_raw(|raw| {
            // SAFETY: the options live until the call returns.
            context
                .create(|result, error| unsafe { sys::kvq_centres_trainer_create(context.raw(), raw, result, error) })
        })?;
        let row = options.raw.kv_heads as usize * options.raw.head_dim as usize;
        Ok(CentresTrainer { handle, context: context.clone(), row })
    }

    #[doc = header!(kvq_centres_trainer_add)]
    pub fn add<T: Element>(&mut self, layer: usize, k: Option<&[T]>, v: Option<&[T]>) -> Result<()> {
        let given = k.or(v).unwrap_or(&[]).len();
        let n = rows_of(if k.is_some() { "k" } else { "v" }, given, self.row, "[n, kv_heads, head_dim]")?;
        if let Some(v) = v {
            shape::require("v", v.len(), given as u128, "as many as k")?;
        }
        let (k, v) = (pointer_of(k).cast(), pointer_of(v).cast());
        // SAFETY: the slices have these lengths, and the trainer is borrowed exclusively.
        self.context.call(|error| unsafe {
            sys::kvq_centres_trainer_add(self.handle.get(), int(layer), int(n), k, v, T::DTYPE.code(), error)
        })
    }

    #[doc = header!(kvq_centres_trainer_run)]
    pub fn run(&mut self, layer: usize, progress: Option<&mut ProgressHook<'_>>) -> Result<()> {
        let mut progress = Progress::new(progress);
        let (hook, user) = (progress.function(), progress.user());
        // SAFETY: the hook lives until the call returns, and the trainer is borrowed exclusively.
        let result = self
            .context
            .call(|error| unsafe { sys::kvq_centres_trainer_run(self.handle.get(), int(layer), hook, user, error) });
        progress.raise();
        result
    }

    #[doc = header!(kvq_centres_trainer_result)]
    pub fn result(&self) -> Result<Centres> {
        // SAFETY: the trainer is only read.
        let handle = self
            .context
            .create(|result, error| unsafe { sys::kvq_centres_trainer_result(self.handle.get(), result, error) })?;
        Ok(Centres::of(handle, &self.context))
    }
}

#[doc = header!(kvq_router_trainer)]
pub struct RouterTrainer {
    handle: Handle<sys::kvq_router_trainer>,
    context: Context,
    q_row: usize,
    kv_row: usize,
}

impl RouterTrainer {
    #[doc = header!(kvq_router_trainer_create)]
    pub fn new(context: &Context, cache: CacheOptions, policy: &Policy, options: RouterTrainerOptions) -> Result<Self> {
        let mut rows = (0, 0);
        let handle = cache.with_raw(|cache| {
            rows =
                (cache.q_heads as usize * cache.head_dim as usize, cache.kv_heads as usize * cache.head_dim as usize);
            options.with_raw(|raw| {
                // SAFETY: all options live until the call returns.
                context.create(|result, error| unsafe {
                    sys::kvq_router_trainer_create(context.raw(), cache, policy.raw(), raw, result, error)
                })
            })
        })?;
        Ok(RouterTrainer { handle, context: context.clone(), q_row: rows.0, kv_row: rows.1 })
    }

    #[doc = header!(kvq_router_trainer_add)]
    pub fn add<T: Element>(&mut self, layer: usize, q: Option<&[T]>, k: &[T], v: Option<&[T]>) -> Result<()> {
        let n = rows_of("k", k.len(), self.kv_row, "[n, kv_heads, head_dim]")?;
        if let Some(q) = q {
            shape::require("q", q.len(), n as u128 * self.q_row as u128, "[n, q_heads, head_dim]")?;
        }
        if let Some(v) = v {
            shape::require("v", v.len(), k.len() as u128, "as many as k")?;
        }
        let (q, k, v) = (pointer_of(q).cast(), k.as_ptr().cast(), pointer_of(v).cast());
        // SAFETY: the slices have these lengths, and the trainer is borrowed exclusively.
        self.context.call(|error| unsafe {
            sys::kvq_router_trainer_add(self.handle.get(), int(layer), int(n), q, k, v, T::DTYPE.code(), error)
        })
    }

    #[doc = header!(kvq_router_trainer_run)]
    pub fn run(&mut self, loss: f64, progress: Option<&mut ProgressHook<'_>>) -> Result<()> {
        let mut progress = Progress::new(progress);
        let (hook, user) = (progress.function(), progress.user());
        // SAFETY: the hook lives until the call returns, and the trainer is borrowed exclusively.
        let result = self
            .context
            .call(|error| unsafe { sys::kvq_router_trainer_run(self.handle.get(), loss, hook, user, error) });
        progress.raise();
        result
    }

    #[doc = header!(kvq_router_trainer_result)]
    pub fn result(&self) -> Result<Router> {
        // SAFETY: the trainer is only read.
        let handle = self
            .context
            .create(|result, error| unsafe { sys::kvq_router_trainer_result(self.handle.get(), result, error) })?;
        Ok(Router::of(handle, &self.context))
    }
}
