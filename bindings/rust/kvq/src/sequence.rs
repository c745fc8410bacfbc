//! Sequences: the pages of one conversation.
use crate::call::{self, fill, Handle};
use crate::convert::{count, int};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{debug, default_is_new, Raw};
use crate::policy::pointer_to;
use crate::shape::{self, pointer_of, rows_of, Extent};
use crate::{Cache, Context, Dtype, Element, Error, Policy, RecodeInfo, Result, Usage};
use kvq_sys as sys;
use std::ops::Range;
use std::os::raw::c_void;
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[doc = header!(kvq_sequence)]
///
/// Methods on `&self` may be called by any number of threads, and so may [`Cache::attend`].
pub struct Sequence {
    /// Taken when the sequence is dropped.
    handle: Option<Handle<sys::kvq_sequence>>,
    cache: Cache,
    /// If the policy evicts: exclusive for attending, shared for reading.
    observed: RwLock<()>,
}

#[doc = header!(kvq_compress_options)]
#[derive(Clone)]
pub struct CompressOptions {
    raw: Raw<sys::kvq_compress_options>,
}

default_is_new!(CompressOptions);

impl CompressOptions {
    setters!(kvq_compress_options);

    /// Returns options with the policy's budget.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        CompressOptions { raw: Raw(unsafe { call::defaults(sys::kvq_compress_options_init) }) }
    }
}

/// Result of [`Sequence::compress`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compressed {
    /// `[n_layers, kv_heads]`: tokens that each head holds now.
    pub kept: Vec<i32>,
    /// Decrease in the bytes of the sequence.
    pub bytes_freed: u64,
}

/// Result of [`Sequence::decode`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decoded {
    /// `[n, key_dim]`, as attention reads them.
    pub k: Vec<f32>,
    /// `[n, value_dim]`.
    pub v: Vec<f32>,
    /// Original positions.
    pub positions: Vec<i32>,
}

type Reading<'a> = (RwLockReadGuard<'a, ()>, Option<RwLockReadGuard<'a, ()>>);

impl Sequence {
    #[doc = header!(kvq_sequence_create)]
    pub fn new(cache: &Cache) -> Result<Self> {
        let _shared = cache.shared()?;
        // SAFETY: the cache lives.
        let handle =
            cache.context().create(|result, error| unsafe { sys::kvq_sequence_create(cache.raw(), result, error) })?;
        Ok(Sequence::of(handle, cache))
    }

    pub(crate) fn of(handle: Handle<sys::kvq_sequence>, cache: &Cache) -> Self {
        Sequence { handle: Some(handle), cache: cache.clone(), observed: RwLock::new(()) }
    }

    #[doc = header!(kvq_sequence_fork)]
    pub fn fork(&self) -> Result<Self> {
        let _reading = self.reading()?;
        // SAFETY: the parent is borrowed, and its cache lives.
        let handle = self
            .cache
            .context()
            .create(|result, error| unsafe { sys::kvq_sequence_fork(self.cache.raw(), self.raw(), result, error) })?;
        Ok(Sequence::of(handle, &self.cache))
    }

    #[doc = header!(kvq_sequence_put_state)]
    pub fn put_state(&mut self, layer: usize, tokens: usize, data: &[u8]) -> Result<()> {
        // SAFETY: the sequence is borrowed exclusively, and the slice has this length and lives until the call returns.
        self.change(|cache, sequence, error| unsafe {
            let (bytes, size) = (data.as_ptr().cast(), data.len());
            sys::kvq_sequence_put_state(cache, sequence, int(layer), int(tokens), bytes, size, error)
        })
    }

    #[doc = header!(kvq_sequence_recode)]
    pub fn recode<'a>(&mut self, policy: impl Into<Option<&'a Policy>>) -> Result<()> {
        let policy = pointer_to(policy.into());
        // SAFETY: the sequence is borrowed exclusively, and the policy lives until the call returns.
        self.change(|cache, sequence, error| unsafe { sys::kvq_sequence_recode(cache, sequence, policy, error) })
    }

    #[doc = header!(kvq_sequence_predict_recode)]
    pub fn predict_recode<'a>(&mut self, policy: impl Into<Option<&'a Policy>>) -> Result<RecodeInfo> {
        let policy = pointer_to(policy.into());
        let _shared = self.cache.shared()?;
        // SAFETY: kvq_sequence_predict_recode fills this struct; the sequence is borrowed exclusively.
        let raw = unsafe {
            fill(self.context().panics(), |info, error| {
                sys::kvq_sequence_predict_recode(self.cache.raw(), self.raw(), policy, info, error)
            })?
        };
        Ok(RecodeInfo::from_raw(&raw))
    }

    #[doc = header!(kvq_append)]
    ///
    /// The number of tokens is the number of rows in `k`; positions are consecutive. Where values are a prefix of keys,
    /// `v` is empty.
    pub fn append<T: Element>(&mut self, layer: usize, k: &[T], v: &[T]) -> Result<()> {
        self.append_slices(layer, k, v, None)
    }

    /// Like [`append`](Self::append), at the given positions.
    pub fn append_at<T: Element>(&mut self, layer: usize, k: &[T], v: &[T], positions: &[i32]) -> Result<()> {
        self.append_slices(layer, k, v, Some(positions))
    }

    /// Like [`append`](Self::append) and [`append_at`](Self::append_at), from the context's memory.
    ///
    /// # Safety
    /// `k` and, unless it is null, `v` must hold `n` tokens until the context's stream has read them.
    pub unsafe fn append_device(
        &mut self,
        layer: usize,
        n: usize,
        k: *const c_void,
        v: *const c_void,
        dtype: Dtype,
        positions: Option<&[i32]>,
    ) -> Result<()> {
        positions.map_or(Ok(()), |one| shape::require("positions", one.len(), n as u128, "one a token"))?;
        let positions = pointer_of(positions);
        // SAFETY: the caller guarantees the memory of keys and values; the sequence is borrowed exclusively.
        self.change(|cache, sequence, error| unsafe {
            sys::kvq_append(cache, sequence, int(layer), int(n), k, v, dtype.code(), positions, error)
        })
    }

    fn append_slices<T: Element>(&mut self, layer: usize, k: &[T], v: &[T], positions: Option<&[i32]>) -> Result<()> {
        self.cache.context().require_host("append")?;
        let info = self.cache.layer(layer)?;
        let n = rows_of("k", k.len(), info.kv_heads * info.key_dim, "[n, kv_heads, key_dim]")?;
        let numbers = n as u128 * info.kv_heads as u128 * info.value_dim as u128;
        let v = shape::values_of(Extent::of(v), info.values_are_key_prefix, |length| {
            shape::require("v", length, numbers, "[n, kv_heads, value_dim]")
        })?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.append_device(layer, n, k.as_ptr().cast(), v, T::DTYPE, positions) }
    }

    #[doc = header!(kvq_sequence_decode)]
    pub fn decode(&self, layer: usize, kv_head: usize, slots: Range<usize>) -> Result<Decoded> {
        let held = self.slots(layer, kv_head)?;
        if slots.start >= slots.end || slots.end > held {
            return Err(Error::argument(format!("slots is {slots:?}, must lie in 0..{held} and not be empty")));
        }
        let (n, info) = (slots.len(), self.cache.layer(layer)?);
        let numbers = |channels| Ok(vec![0.0; shape::product("slots", n, channels)?]);
        let mut decoded = Decoded { k: numbers(info.key_dim)?, v: numbers(info.value_dim)?, positions: vec![0; n] };
        let Decoded { k, v, positions } = &mut decoded;
        self.decode_into(layer, kv_head, slots, Some(k), Some(v), Some(positions))?;
        Ok(decoded)
    }

    /// Like [`decode`](Self::decode), into slices; `None` skips an output.
    pub fn decode_into(
        &self,
        layer: usize,
        kv_head: usize,
        slots: Range<usize>,
        k: Option<&mut [f32]>,
        v: Option<&mut [f32]>,
        positions: Option<&mut [i32]>,
    ) -> Result<()> {
        let info = self.cache.layer(layer)?;
        let numbers = |channels: usize| slots.len() as u128 * channels as u128;
        let check = |name, length: Option<usize>, needed, shape| {
            length.map_or(Ok(()), |length| shape::require(name, length, needed, shape))
        };
        check("k", k.as_ref().map(|k| k.len()), numbers(info.key_dim), "[slots, key_dim]")?;
        check("v", v.as_ref().map(|v| v.len()), numbers(info.value_dim), "[slots, value_dim]")?;
        check("positions", positions.as_ref().map(|one| one.len()), slots.len() as u128, "[slots]")?;
        let k = k.map_or(ptr::null_mut(), <[f32]>::as_mut_ptr);
        let v = v.map_or(ptr::null_mut(), <[f32]>::as_mut_ptr);
        let positions = positions.map_or(ptr::null_mut(), <[i32]>::as_mut_ptr);
        let (begin, n) = (int(slots.start), int(slots.len()));
        let _reading = self.reading()?;
        // SAFETY: the slices have these lengths or are NULL.
        self.cache.context().call(|error| unsafe {
            let (cache, sequence) = (self.cache.raw(), self.raw());
            sys::kvq_sequence_decode(cache, sequence, int(layer), int(kv_head), begin, n, k, v, positions, error)
        })
    }

    #[doc = header!(kvq_compress)]
    pub fn compress(&mut self, options: CompressOptions) -> Result<Compressed> {
        let info = self.cache.describe();
        let mut done = Compressed { kept: vec![0; info.n_layers * info.kv_heads], bytes_freed: 0 };
        let mut raw = *options.raw;
        raw.kept = done.kept.as_mut_ptr();
        raw.bytes_freed = &mut done.bytes_freed;
        // SAFETY: the outputs have room, and the sequence is borrowed exclusively.
        self.change(|cache, sequence, error| unsafe { sys::kvq_compress(cache, sequence, &raw, error) })?;
        Ok(done)
    }

    #[doc = header!(kvq_cache_usage)]
    ///
    /// Covers this sequence.
    pub fn usage(&self) -> Result<Usage> {
        let _reading = self.reading()?;
        self.cache.usage_of(self.raw())
    }

    #[doc = header!(kvq_sequence_cache)]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn context(&self) -> &Context {
        self.cache.context()
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::kvq_sequence {
        self.handle.as_ref().map_or(ptr::null_mut(), Handle::get)
    }

    pub(crate) fn observe(&self) -> RwLockWriteGuard<'_, ()> {
        self.observed.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unobserved(&self) -> RwLockReadGuard<'_, ()> {
        self.observed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while the sequence is read.
    pub(crate) fn reading(&self) -> Result<Reading<'_>> {
        let shared = self.cache.shared()?;
        Ok((shared, self.cache.evicts().then(|| self.unobserved())))
    }

    pub(crate) fn number(
        &self,
        function: impl FnOnce(*mut i32, *mut sys::kvq_error) -> sys::kvq_status,
    ) -> Result<usize> {
        let _reading = self.reading()?;
        let mut number = 0;
        self.cache.context().call(|error| function(&mut number, error))?;
        Ok(count(number))
    }

    pub(crate) fn change(
        &mut self,
        function: impl FnOnce(*mut sys::kvq_cache, *mut sys::kvq_sequence, *mut sys::kvq_error) -> sys::kvq_status,
    ) -> Result<()> {
        let _shared = self.cache.shared()?;
        self.cache.context().call(|error| function(self.cache.raw(), self.raw(), error))
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let cache = self.cache.clone();
            call::destroy(move || {
                let _shared = cache.shared_in_drop();
                drop(handle);
            });
        }
    }
}

debug!(Sequence, it => it.raw());
