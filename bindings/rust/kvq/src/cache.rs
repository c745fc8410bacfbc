//! Caches: the shape of a model's attention layers, and attention itself.
use crate::call::{create_all, defaults, fill, Handle};
use crate::convert::int;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{debug, default_is_new, optional, Raw};
use crate::policy::pointer_to;
use crate::shape::{pointer_of, with_pointers};
use crate::{call, Append, Attend, DeviceAppend, DeviceAttend, DeviceExtend, Extend};
use crate::{
    BlockLayout, CacheInfo, Centres, Codebook, Context, Error, LayerInfo, LayerShape, Policy, Result, Router, Sequence,
    SnapshotInfo, Step, Usage,
};
use kvq_sys as sys;
use std::fmt;
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[doc = header!(kvq_cache_options)]
#[derive(Clone)]
pub struct CacheOptions {
    raw: Raw<sys::kvq_cache_options>,
    inv_freq: Option<Vec<f32>>,
    codebook: Option<Codebook>,
    centres: Option<Centres>,
    router: Option<Router>,
    shapes: Option<Vec<LayerShape>>,
    mrope_section: Option<[i32; 3]>,
}

impl CacheOptions {
    setters!(kvq_cache_options);

    /// The library's defaults for a model of this shape.
    pub fn new(n_layers: usize, q_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_cache_options_init) });
        let (inv_freq, codebook, centres, router, shapes, mrope_section) = (None, None, None, None, None, None);
        let options = CacheOptions { raw, inv_freq, codebook, centres, router, shapes, mrope_section };
        options.n_layers(n_layers).q_heads(q_heads).kv_heads(kv_heads).head_dim(head_dim)
    }

    optional!(kvq_cache_options, inv_freq: impl Into<Vec<f32>> = inv_freq.into(),
        codebook: &Codebook = codebook.clone(), centres: &Centres = centres.clone(), router: &Router = router.clone(),
        shapes: impl Into<Vec<LayerShape>> = shapes.into(), mrope_section: [i32; 3] = mrope_section);

    /// Calls `function` with the struct in C, which is valid until it returns.
    pub(crate) fn with_raw<R>(&self, function: impl FnOnce(&sys::kvq_cache_options) -> Result<R>) -> Result<R> {
        let mut raw = *self.raw;
        if let Some(inv_freq) = &self.inv_freq {
            let dim = if raw.rotary_dim > 0 { raw.rotary_dim } else { raw.head_dim };
            crate::shape::require("inv_freq", inv_freq.len(), dim as u128 / 2, "[rotary_dim / 2]")?;
            raw.inv_freq = inv_freq.as_ptr();
        }
        raw.mrope_section = pointer_of(self.mrope_section.as_ref().map(|pairs| &pairs[..]));
        raw.codebook = self.codebook.as_ref().map_or(ptr::null(), |one| one.raw());
        raw.centres = self.centres.as_ref().map_or(ptr::null(), |one| one.raw());
        raw.router = self.router.as_ref().map_or(ptr::null(), |one| one.raw());
        let shapes: Vec<_> =
            self.shapes.iter().flatten().enumerate().map(|(at, one)| one.filled(at, &raw)).collect::<Result<_>>()?;
        (raw.shapes, raw.n_shapes) = (shapes.as_ptr(), int(shapes.len()));
        function(&raw)
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let shape = [raw.n_layers, raw.q_heads, raw.kv_heads, raw.head_dim];
        out.debug_struct("CacheOptions").field("layers, q_heads, kv_heads, head_dim", &shape).finish()
    }
}

#[doc = header!(kvq_load_options)]
#[derive(Clone)]
pub struct LoadOptions {
    raw: Raw<sys::kvq_load_options>,
    policy: Option<Policy>,
}

default_is_new!(LoadOptions);

impl LoadOptions {
    setters!(kvq_load_options);

    /// Returns options with the cache's policy, which refuse other formats.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        LoadOptions { raw: Raw(unsafe { defaults(sys::kvq_load_options_init) }), policy: None }
    }

    optional!(kvq_load_options, policy: &Policy = policy.clone());

    /// The struct in C, which is valid as long as the options.
    fn filled(options: Option<&Self>) -> sys::kvq_load_options {
        match options {
            Some(options) => sys::kvq_load_options { policy: pointer_to(options.policy.as_ref()), ..*options.raw },
            None => *LoadOptions::new().raw,
        }
    }
}

debug!(LoadOptions, it => (it.raw.recode != 0, &it.policy));

#[doc = header!(kvq_cache)]
///
/// Clones are the same cache.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    handle: Handle<sys::kvq_cache>,
    context: Context,
    info: CacheInfo,
    layers: Vec<LayerInfo>,
    /// Shared by calls on sequences; exclusive for counting the bytes of all of them.
    sequences: RwLock<()>,
}

impl Cache {
    #[doc = header!(kvq_cache_create)]
    pub fn new<'a>(context: &Context, options: CacheOptions, policy: impl Into<Option<&'a Policy>>) -> Result<Self> {
        let policy = pointer_to(policy.into());
        let handle = options.with_raw(|raw| {
            // SAFETY: the options and what they point at live until the call returns.
            context.create(|result, error| unsafe { sys::kvq_cache_create(context.raw(), raw, policy, result, error) })
        })?;
        // SAFETY: kvq_cache_describe fills this struct.
        let raw = unsafe { fill(context.panics(), |info, error| sys::kvq_cache_describe(handle.get(), info, error))? };
        let info = CacheInfo::from_raw(&raw);
        let describe = |layer| {
            // SAFETY: kvq_cache_describe_layer fills this struct.
            let raw = unsafe {
                fill(context.panics(), |info, error| {
                    sys::kvq_cache_describe_layer(handle.get(), int(layer), info, error)
                })?
            };
            Ok(LayerInfo::from_raw(&raw))
        };
        let layers = (0..info.n_layers).map(describe).collect::<Result<_>>()?;
        Ok(Cache(Arc::new(Inner { handle, context: context.clone(), info, layers, sequences: RwLock::new(()) })))
    }

    #[doc = header!(kvq_cache_describe)]
    pub fn describe(&self) -> &CacheInfo {
        &self.0.info
    }

    /// Returns the shape of a layer with tokens, or the library's refusal of its number.
    pub(crate) fn layer(&self, layer: usize) -> Result<&LayerInfo> {
        let refused =
            || self.describe_layer(layer).err().unwrap_or_else(|| Error::argument(format!("layer is {layer}")));
        let info = self.0.layers.get(layer).ok_or_else(refused)?;
        let message = || Error::argument(format!("layer is {layer}, which is recurrent and holds no tokens"));
        (!info.recurrent).then_some(info).ok_or_else(message)
    }

    #[doc = header!(kvq_pool_layout)]
    pub fn block_layout(&self, layer: usize, block_tokens: usize) -> Result<BlockLayout> {
        // SAFETY: kvq_pool_layout fills this struct.
        let raw = unsafe {
            fill(self.context().panics(), |layout, error| {
                sys::kvq_pool_layout(self.raw(), int(layer), int(block_tokens), layout, error)
            })?
        };
        Ok(BlockLayout::from_raw(&raw))
    }

    #[doc = header!(kvq_cache_context)]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    #[doc = header!(kvq_cache_save)]
    pub fn save(&self, sequences: &[&Sequence]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.with_own(sequences.iter().copied(), |pointers| {
            let _reading: Vec<_> = self.observed_by(sequences).into_iter().map(Sequence::unobserved).collect();
            // SAFETY: there are `capacity` bytes at `buffer`, and the sequences are borrowed.
            bytes = call::save(self.context().panics(), |buffer, capacity, size, error| unsafe {
                let (pointers, n) = (pointers.as_ptr().cast(), int(pointers.len()));
                sys::kvq_cache_save(self.raw(), pointers, n, buffer.cast(), capacity, size, error)
            })?;
            Ok(())
        })?;
        Ok(bytes)
    }

    #[doc = header!(kvq_cache_load)]
    ///
    /// ```
    /// # use kvq::{Cache, CacheOptions, Context, ContextOptions, LoadOptions, Policy, Sequence};
    /// # fn main() -> kvq::Result<()> {
    /// # let context = Context::new(ContextOptions::new())?;
    /// # let [cache, other] = [(); 2].map(|()| Cache::new(&context, CacheOptions::new(1, 2, 2, 64), None).unwrap());
    /// # let sequence = Sequence::new(&cache)?;
    /// let fork = sequence.fork()?;
    /// let bytes = cache.save(&[&sequence, &fork])?;
    /// assert_eq!(other.load(&bytes, None)?.len(), 2);
    /// let small = Policy::load(&context, "gs2")?; // instead of the cache's
    /// let loaded = other.load(&bytes, &LoadOptions::new().policy(&small).recode(true))?;
    /// # assert_eq!(loaded.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load<'a>(&self, bytes: &[u8], options: impl Into<Option<&'a LoadOptions>>) -> Result<Vec<Sequence>> {
        let options = options.into();
        let n = self.describe_snapshot(bytes, options)?.n_sequences;
        let raw = LoadOptions::filled(options);
        let handles = {
            let _shared = self.shared()?;
            // SAFETY: the slice has this length, and there is room for `n` handles.
            create_all(self.context().panics(), n, |made, error| unsafe {
                sys::kvq_cache_load(self.raw(), bytes.as_ptr().cast(), bytes.len(), made, int(n), &raw, error)
            })?
        };
        Ok(handles.into_iter().map(|handle| Sequence::of(handle, self)).collect())
    }

    #[doc = header!(kvq_snapshot_describe)]
    pub fn describe_snapshot<'a>(
        &self,
        bytes: &[u8],
        options: impl Into<Option<&'a LoadOptions>>,
    ) -> Result<SnapshotInfo> {
        let raw = LoadOptions::filled(options.into());
        // SAFETY: the slice has this length, and kvq_snapshot_describe fills this struct.
        let info = unsafe {
            fill(self.context().panics(), |info, error| {
                sys::kvq_snapshot_describe(self.raw(), bytes.as_ptr().cast(), bytes.len(), &raw, info, error)
            })?
        };
        Ok(SnapshotInfo::from_raw(&info))
    }

    #[doc = header!(kvq_sequence_load)]
    pub fn load_sequence(&self, bytes: &[u8]) -> Result<Sequence> {
        let _shared = self.shared()?;
        // SAFETY: the slice has this length and lives until the call returns.
        let handle = self.context().create(|result, error| unsafe {
            sys::kvq_sequence_load(self.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
        })?;
        Ok(Sequence::of(handle, self))
    }

    #[doc = header!(kvq_append_sequences)]
    ///
    /// [`extend`](Self::extend) also attends, and loses less for chunks of a prompt.
    pub fn append(&self, layer: usize, sequences: &mut [&mut Sequence], batch: Append<'_>) -> Result<()> {
        self.context().require_host("append")?;
        let raw = batch.checked(self.layer(layer)?, sequences.len())?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.append_raw(layer, sequences, raw) }
    }

    /// Like [`append`](Self::append), from the context's memory.
    ///
    /// # Safety
    /// Keys and values must be where `batch` says until the context's stream has read them.
    pub unsafe fn append_device(
        &self,
        layer: usize,
        sequences: &mut [&mut Sequence],
        batch: DeviceAppend<'_>,
    ) -> Result<()> {
        let (raw, _) = batch.counted(sequences.len())?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.append_raw(layer, sequences, raw) }
    }

    /// # Safety
    /// The memory that `raw` points to must be readable.
    unsafe fn append_raw(
        &self,
        layer: usize,
        sequences: &mut [&mut Sequence],
        mut raw: sys::kvq_append_batch,
    ) -> Result<()> {
        self.with_own(sequences.iter().map(|sequence| &**sequence), |pointers| {
            (raw.n_sequences, raw.sequences) = (int(pointers.len()), pointers.as_ptr());
            // SAFETY: guaranteed by the caller; the sequences are borrowed exclusively.
            self.context().call(|error| unsafe { sys::kvq_append_sequences(self.raw(), int(layer), &raw, error) })
        })
    }

    #[doc = header!(kvq_attend)]
    ///
    /// Calls on several threads run at once. If the policy evicts, calls on the same sequence wait for each other.
    pub fn attend(&self, layer: usize, sequences: &[&Sequence], batch: Attend<'_>) -> Result<()> {
        self.context().require_host("attend")?;
        let raw = batch.checked(self.layer(layer)?, sequences.len())?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.attend_raw(layer, sequences, raw) }
    }

    /// Like [`attend`](Self::attend), in the context's memory.
    ///
    /// # Safety
    /// All memory must be where `batch` says and, for a CUDA context, stay there until the stream is done with it.
    pub unsafe fn attend_device(&self, layer: usize, sequences: &[&Sequence], batch: DeviceAttend<'_>) -> Result<()> {
        let (raw, _) = batch.counted(sequences.len())?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.attend_raw(layer, sequences, raw) }
    }

    /// # Safety
    /// The memory that `raw` points to must be readable and writable.
    unsafe fn attend_raw(&self, layer: usize, sequences: &[&Sequence], mut raw: sys::kvq_attend_batch) -> Result<()> {
        self.with_own(sequences.iter().copied(), |pointers| {
            let _observing = self.observe(sequences);
            (raw.n_sequences, raw.sequences) = (int(pointers.len()), pointers.as_ptr().cast());
            // SAFETY: guaranteed by the caller; the sequences are borrowed.
            self.context().call(|error| unsafe { sys::kvq_attend(self.raw(), int(layer), &raw, error) })
        })
    }

    #[doc = header!(kvq_extend)]
    pub fn extend(&self, layer: usize, sequences: &mut [&mut Sequence], batch: Extend<'_>) -> Result<()> {
        self.context().require_host("extend")?;
        let raw = batch.checked(self.layer(layer)?, sequences.len())?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.extend_raw(layer, sequences, raw) }
    }

    /// Like [`extend`](Self::extend), in the context's memory.
    ///
    /// # Safety
    /// All memory must be where `batch` says and, for a CUDA context, stay there until the stream is done with it.
    pub unsafe fn extend_device(
        &self,
        layer: usize,
        sequences: &mut [&mut Sequence],
        batch: DeviceExtend<'_>,
    ) -> Result<()> {
        let (raw, _) = batch.counted(sequences.len())?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.extend_raw(layer, sequences, raw) }
    }

    /// # Safety
    /// The memory that `raw` points to must be readable and writable.
    unsafe fn extend_raw(
        &self,
        layer: usize,
        sequences: &mut [&mut Sequence],
        mut raw: sys::kvq_extend_batch,
    ) -> Result<()> {
        self.with_own(sequences.iter().map(|sequence| &**sequence), |pointers| {
            (raw.n_sequences, raw.sequences) = (int(pointers.len()), pointers.as_ptr());
            // SAFETY: guaranteed by the caller; the sequences are borrowed exclusively.
            self.context().call(|error| unsafe { sys::kvq_extend(self.raw(), int(layer), &raw, error) })
        })
    }

    #[doc = header!(kvq_step_begin)]
    ///
    /// The [`Step`] borrows the sequences; [`Step::sequences`] lends them. Unless it is committed, dropping it aborts.
    ///
    /// ```
    /// # use kvq::{Cache, CacheOptions, Context, ContextOptions, Extend, Sequence};
    /// # fn main() -> kvq::Result<()> {
    /// # let context = Context::new(ContextOptions::new())?;
    /// # let cache = Cache::new(&context, CacheOptions::new(2, 2, 2, 64), None)?;
    /// # let (mut a, mut b) = (Sequence::new(&cache)?, Sequence::new(&cache)?);
    /// # let (k, v, q, mut output) = ([0.5f32; 8 * 128], [1.0f32; 8 * 128], [0.1f32; 8 * 128], [0.0f32; 8 * 128]);
    /// let counts = [5, 3]; // draft tokens of each sequence
    /// let mut step = cache.step([&mut a, &mut b], &counts)?;
    /// for layer in 0..2 {
    ///     cache.extend(layer, step.sequences(), Extend::new(&k, &v, &q, &mut output).token_counts(&counts))?;
    /// }
    /// step.commit_first(&[2, 3])?; // accepted ones
    /// assert_eq!(a.length(0)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn step<'a>(
        &self,
        sequences: impl IntoIterator<Item = &'a mut Sequence>,
        token_counts: &[i32],
    ) -> Result<Step<'a>> {
        Step::begin(self, sequences.into_iter().collect(), token_counts)
    }

    /// Calls `function` with the pointers of sequences, which must be this cache's.
    pub(crate) fn with_own<'a>(
        &self,
        sequences: impl ExactSizeIterator<Item = &'a Sequence> + Clone,
        function: impl FnOnce(&[*mut sys::kvq_sequence]) -> Result<()>,
    ) -> Result<()> {
        for (at, sequence) in sequences.clone().enumerate() {
            if !Arc::ptr_eq(&self.0, &sequence.cache().0) {
                return Err(Error::argument(format!("sequences[{at}] belongs to another cache")));
            }
        }
        let _shared = self.shared()?;
        with_pointers(sequences, ptr::null_mut(), Sequence::raw, function)
    }

    /// Attention records observations for `Sequence::compress`: then one call at a time uses a sequence.
    fn observe<'a>(&self, sequences: &[&'a Sequence]) -> Vec<RwLockWriteGuard<'a, ()>> {
        self.observed_by(sequences).into_iter().map(Sequence::observe).collect()
    }

    /// Sequences whose locks a call takes, in one order, so that two calls cannot deadlock.
    fn observed_by<'a>(&self, sequences: &[&'a Sequence]) -> Vec<&'a Sequence> {
        if !self.evicts() {
            return Vec::new();
        }
        let mut ordered = sequences.to_vec();
        ordered.sort_by_key(|sequence| sequence.raw());
        ordered.dedup_by_key(|sequence| sequence.raw());
        ordered
    }

    pub(crate) fn evicts(&self) -> bool {
        self.0.info.eviction_budget > 0
    }

    #[doc = header!(kvq_cache_usage)]
    ///
    /// Covers the whole cache; waits until no other thread is inside a call on one of its sequences.
    pub fn usage(&self) -> Result<Usage> {
        call::require_no_hook()?;
        let _alone = self.0.sequences.write().unwrap_or_else(PoisonError::into_inner);
        self.usage_of(ptr::null())
    }

    #[doc = header!(kvq_cache_predict_usage)]
    pub fn predict_usage(&self, sequences: usize, tokens: usize, queries: usize) -> Result<Usage> {
        let (sequences, tokens, queries) = (int(sequences), int(tokens), int(queries));
        // SAFETY: kvq_cache_predict_usage fills this struct.
        let raw = unsafe {
            fill(self.context().panics(), |usage, error| {
                sys::kvq_cache_predict_usage(self.raw(), sequences, tokens, queries, usage, error)
            })?
        };
        Ok(Usage::from_raw(&raw))
    }

    pub(crate) fn usage_of(&self, sequence: *const sys::kvq_sequence) -> Result<Usage> {
        // SAFETY: kvq_cache_usage fills this struct.
        let raw = unsafe {
            fill(self.context().panics(), |usage, error| sys::kvq_cache_usage(self.raw(), sequence, usage, error))?
        };
        Ok(Usage::from_raw(&raw))
    }

    /// Held while a sequence is used.
    pub(crate) fn shared(&self) -> Result<RwLockReadGuard<'_, ()>> {
        call::require_no_hook()?;
        Ok(self.shared_in_drop())
    }

    pub(crate) fn shared_in_drop(&self) -> RwLockReadGuard<'_, ()> {
        self.0.sequences.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::kvq_cache {
        self.0.handle.get()
    }
}

debug!(Cache, it => it.0.info);
