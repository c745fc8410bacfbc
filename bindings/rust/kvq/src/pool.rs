//! Pools: tokens in memory of an engine, found by its block tables.
use crate::call::{defaults, Handle};
use crate::convert::{count, int, long};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{debug, optional, Raw};
use crate::shape::{self, pointer_of};
use crate::{Append, Attend, Cache, Context, DeviceAppend, DeviceAttend, DeviceExtend, Error, Extend, Result, Status};
use kvq_sys as sys;
use std::os::raw::c_void;
use std::sync::Arc;

#[doc = header!(kvq_block_range)]
#[derive(Clone)]
pub struct BlockRange(Raw<sys::kvq_block_range>);

impl BlockRange {
    /// `n_blocks` blocks from `data` on, as many in all layers, `stride` bytes from one to the next; 0: those of a block.
    /// `data` is null for a layer without tokens of its own.
    pub fn new(data: *mut c_void, n_blocks: usize, stride: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = Raw(unsafe { defaults(sys::kvq_block_range_init) });
        (raw.data, raw.n_blocks, raw.stride) = (data, int(n_blocks), long(stride));
        BlockRange(raw)
    }
}

debug!(BlockRange, it => (it.0.data, it.0.n_blocks, it.0.stride));

#[doc = header!(kvq_pool_options)]
#[derive(Clone)]
pub struct PoolOptions {
    raw: Raw<sys::kvq_pool_options>,
    ranges: Vec<BlockRange>,
    tails: Option<Vec<Raw<*mut c_void>>>,
}

impl PoolOptions {
    setters!(kvq_pool_options);

    /// Options for memory `[n_layers, n_ranges]` of blocks, with one range for each layer unless
    /// [`n_ranges`](Self::n_ranges) says otherwise; see [`Cache::block_layout`] for the sizes.
    pub fn new(block_tokens: usize, ranges: impl Into<Vec<BlockRange>>) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_pool_options_init) });
        PoolOptions { raw, ranges: ranges.into(), tails: None }.block_tokens(block_tokens)
    }

    /// Memory of each layer's `n_tails` tails; null for a layer that needs none.
    #[must_use]
    pub fn tails(mut self, n_tails: usize, tails: &[*mut c_void]) -> Self {
        self.tails = Some(tails.iter().map(|&tail| Raw(tail)).collect());
        self.n_tails(n_tails)
    }
}

debug!(PoolOptions, it => (it.raw.block_tokens, &it.ranges));

#[doc = header!(kvq_pool)]
///
/// Clones are the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    handle: Handle<sys::kvq_pool>,
    cache: Cache,
}

impl Pool {
    #[doc = header!(kvq_pool_create)]
    ///
    /// ```
    /// # use kvq::{BlockRange, Cache, CacheOptions, Context, ContextOptions, Extend, Policy};
    /// # use kvq::{Pool, PoolBatch, PoolLimits, PoolOptions};
    /// # fn main() -> kvq::Result<()> {
    /// # let context = Context::new(ContextOptions::new())?;
    /// # let policy = Policy::load(&context, "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}")?;
    /// # let cache = Cache::new(&context, CacheOptions::new(1, 2, 2, 64), &policy)?;
    /// # #[derive(Clone, Copy)]
    /// # #[repr(align(64))]
    /// # struct Line([u8; 64]);
    /// let layout = cache.block_layout(0, 32)?; // of layer 0, here the only one
    /// let mut blocks = vec![Line([0; 64]); 100 * layout.block_bytes / 64]; // 64 bytes each, aligned
    /// let mut tails = vec![Line([0; 64]); 2 * layout.tail_bytes / 64];
    /// let range = BlockRange::new(blocks.as_mut_ptr().cast(), 100, 0);
    /// let options = PoolOptions::new(32, [range]).tails(2, &[tails.as_mut_ptr().cast()]);
    /// // SAFETY: the vectors are not used otherwise while the pool lives.
    /// let pool = unsafe { Pool::new(&cache, options)? };
    /// let mut plan = pool.plan(PoolLimits::new(2, 64, 10))?; // sequences, new tokens, blocks of a sequence
    ///
    /// # let (k, v, q, mut output) = ([0.5f32; 5 * 128], [1.0f32; 5 * 128], [0.1f32; 5 * 128], [0.0f32; 5 * 128]);
    /// // Four new tokens of a sequence in block 7, and one of another, whose 33 tokens are in blocks 3 and 4.
    /// plan.batch(PoolBatch::new(&[0, 4, 5], &[4, 33], &[7, -1, 3, 4]).table_stride(2).tails(&[0, 1]))?;
    /// plan.extend(0, Extend::new(&k, &v, &q, &mut output))?; // likewise in every layer
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The memory must have these sizes and stay where it is until the pool and its plans are dropped and, for a CUDA
    /// context, the stream is done with it. While a method of the pool or of a plan uses blocks and tails, nothing else
    /// may write to them, nor read those that it writes to. This holds for methods of other plans and pools, too.
    pub unsafe fn new(cache: &Cache, options: PoolOptions) -> Result<Self> {
        let PoolOptions { mut raw, ranges, tails } = options;
        let n_layers = cache.describe().n_layers;
        shape::require("ranges", ranges.len(), n_layers as u128 * count(raw.n_ranges) as u128, "[n_layers, n_ranges]")?;
        if let Some(tails) = &tails {
            shape::require("tails", tails.len(), n_layers as u128, "one for each layer")?;
        }
        let ranges: Vec<_> = ranges.iter().map(|range| *range.0).collect();
        let tails: Option<Vec<_>> = tails.map(|tails| tails.iter().map(|tail| **tail).collect());
        (raw.n_layers, raw.ranges, raw.tails) = (int(n_layers), ranges.as_ptr(), pointer_of(tails.as_deref()));
        // SAFETY: the lists have these lengths and live until the call returns; the caller guarantees their memory.
        let create = |result, error| unsafe { sys::kvq_pool_create(cache.raw(), &*raw, result, error) };
        Ok(Pool(Arc::new(Inner { handle: cache.context().create(create)?, cache: cache.clone() })))
    }

    #[doc = header!(kvq_pool_write_block)]
    pub fn write_block(&self, layer: usize, block: usize, data: &[u8]) -> Result<()> {
        // SAFETY: the slice has this length; the caller of `new` guarantees that nothing else uses the block.
        self.context().call(|error| unsafe {
            let (bytes, size) = (data.as_ptr().cast(), data.len());
            sys::kvq_pool_write_block(self.raw(), int(layer), int(block), bytes, size, error)
        })
    }

    #[doc = header!(kvq_pool_plan_create)]
    pub fn plan(&self, limits: PoolLimits) -> Result<PoolPlan> {
        // SAFETY: the pool lives, and the limits live until the call returns.
        let handle = self
            .context()
            .create(|result, error| unsafe { sys::kvq_pool_plan_create(self.raw(), &*limits.raw, result, error) })?;
        Ok(PoolPlan { handle, pool: self.clone(), max_blocks: limits.raw.max_blocks, n_tokens: None })
    }

    /// Returns the cache whose layers and formats these are.
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    pub(crate) fn context(&self) -> &Context {
        self.cache().context()
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::kvq_pool {
        self.0.handle.get()
    }
}

debug!(Pool, it => it.raw());

#[doc = header!(kvq_pool_limits)]
#[derive(Clone)]
pub struct PoolLimits {
    raw: Raw<sys::kvq_pool_limits>,
}

impl PoolLimits {
    setters!(kvq_pool_limits);

    /// Limits of a batch's sequences, of their new tokens, and of the blocks of one sequence.
    pub fn new(max_sequences: usize, max_tokens: usize, max_blocks: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_pool_limits_init) });
        PoolLimits { raw }.max_sequences(max_sequences).max_tokens(max_tokens).max_blocks(max_blocks)
    }
}

debug!(PoolLimits, it => (it.raw.max_sequences, it.raw.max_tokens, it.raw.max_queries, it.raw.max_blocks));

#[doc = header!(kvq_pool_batch)]
///
/// Takes slices of host memory; a GPU takes [`DevicePoolBatch`].
pub struct PoolBatch<'a> {
    raw: Raw<sys::kvq_pool_batch>,
    query_starts: &'a [i32],
    lengths: &'a [i32],
    block_table: &'a [i32],
    tails: Option<&'a [i32]>,
}

impl<'a> PoolBatch<'a> {
    setters!(kvq_pool_batch);

    /// The first row of each sequence and the end, `[sequences + 1]`, tokens of each sequence, and numbers of its
    /// blocks, `[sequences, table_stride]`. Calls have as many rows as there are new tokens.
    pub fn new(query_starts: &'a [i32], lengths: &'a [i32], block_table: &'a [i32]) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_pool_batch_init) });
        let n_tokens = query_starts.last().map_or(0, |&end| count(end));
        PoolBatch { raw, query_starts, lengths, block_table, tails: None }.n_tokens(n_tokens)
    }

    optional!(kvq_pool_batch, tails: &'a [i32] = tails);

    /// Returns the C struct, with all lengths checked.
    fn checked(&self, max_blocks: i32) -> Result<sys::kvq_pool_batch> {
        let (mut raw, n) = (*self.raw, self.lengths.len());
        shape::require("query_starts", self.query_starts.len(), n as u128 + 1, "[sequences + 1]")?;
        let stride = if raw.table_stride == 0 { i64::from(max_blocks) } else { raw.table_stride };
        let numbers = n as u128 * count(stride) as u128;
        shape::require("block_table", self.block_table.len(), numbers, "[sequences, table_stride]")?;
        if let Some(tails) = self.tails {
            shape::require("tails", tails.len(), n as u128, "[sequences]")?;
        }
        raw.n_sequences = int(n);
        (raw.query_starts, raw.lengths) = (self.query_starts.as_ptr(), self.lengths.as_ptr());
        (raw.block_table, raw.tails) = (self.block_table.as_ptr(), pointer_of(self.tails));
        Ok(raw)
    }
}

#[doc = header!(kvq_pool_batch)]
///
/// Takes addresses in the context's memory (device memory for a CUDA context); see [`PoolBatch`] for slices.
pub struct DevicePoolBatch {
    raw: Raw<sys::kvq_pool_batch>,
}

impl DevicePoolBatch {
    setters!(kvq_pool_batch);

    /// This many sequences, and rows of the calls' tensors; arrays as in [`PoolBatch::new`].
    pub fn new(
        n_sequences: usize,
        n_tokens: usize,
        query_starts: *const i32,
        lengths: *const i32,
        block_table: *const i32,
    ) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = Raw(unsafe { defaults(sys::kvq_pool_batch_init) });
        raw.n_sequences = int(n_sequences);
        (raw.query_starts, raw.lengths, raw.block_table) = (query_starts, lengths, block_table);
        DevicePoolBatch { raw }.n_tokens(n_tokens)
    }

    #[doc = header!(kvq_pool_batch, tails)]
    #[must_use]
    pub fn tails(mut self, tails: *const i32) -> Self {
        self.raw.tails = tails;
        self
    }
}

type Function = unsafe extern "C" fn(
    *mut sys::kvq_pool_plan,
    i32,
    *const sys::kvq_pool_call,
    *mut sys::kvq_error,
) -> sys::kvq_status;

#[doc = header!(kvq_pool_plan)]
///
/// Batches of calls are those of [`Cache`], without counts and positions.
pub struct PoolPlan {
    handle: Handle<sys::kvq_pool_plan>,
    pool: Pool,
    max_blocks: i32,
    /// Of the planned batch, if there is one.
    n_tokens: Option<usize>,
}

impl PoolPlan {
    #[doc = header!(kvq_pool_plan_bytes)]
    pub fn bytes(&self) -> u64 {
        // SAFETY: the plan lives.
        unsafe { sys::kvq_pool_plan_bytes(self.raw()) }
    }

    #[doc = header!(kvq_pool_plan_batch)]
    pub fn batch(&mut self, batch: PoolBatch<'_>) -> Result<()> {
        self.pool.context().require_host("batch")?;
        let raw = batch.checked(self.max_blocks)?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.batch_raw(raw) }
    }

    /// Like [`batch`](Self::batch), from the context's memory.
    ///
    /// # Safety
    /// The arrays must be where `batch` says and, for a CUDA context, stay there until the stream is done with this
    /// batch, and with the graphs that have captured it.
    pub unsafe fn batch_device(&mut self, batch: DevicePoolBatch) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.batch_raw(*batch.raw) }
    }

    /// # Safety
    /// The arrays that `raw` points to must be readable.
    unsafe fn batch_raw(&mut self, raw: sys::kvq_pool_batch) -> Result<()> {
        self.n_tokens = None;
        // SAFETY: guaranteed by the caller; the plan is borrowed exclusively.
        self.pool.context().call(|error| unsafe { sys::kvq_pool_plan_batch(self.raw(), &raw, error) })?;
        self.n_tokens = Some(count(raw.n_tokens));
        Ok(())
    }

    #[doc = header!(kvq_pool_append)]
    pub fn append(&mut self, layer: usize, batch: Append<'_>) -> Result<()> {
        self.pool.context().require_host("append")?;
        let raw = batch.pooled(self.pool.cache().layer(layer)?, self.rows()?)?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.run(sys::kvq_pool_append, layer, raw) }
    }

    /// Like [`append`](Self::append), from the context's memory.
    ///
    /// # Safety
    /// Keys and values must be where `batch` says until the context's stream has read them.
    pub unsafe fn append_device(&mut self, layer: usize, batch: DeviceAppend<'_>) -> Result<()> {
        let raw = batch.planned(self.rows()?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(sys::kvq_pool_append, layer, raw) }
    }

    #[doc = header!(kvq_pool_attend)]
    pub fn attend(&mut self, layer: usize, batch: Attend<'_>) -> Result<()> {
        self.pool.context().require_host("attend")?;
        let raw = batch.pooled(self.pool.cache().layer(layer)?, self.rows()?)?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.run(sys::kvq_pool_attend, layer, raw) }
    }

    /// Like [`attend`](Self::attend), in the context's memory.
    ///
    /// # Safety
    /// All memory must be where `batch` says and, for a CUDA context, stay there until the stream is done with it.
    pub unsafe fn attend_device(&mut self, layer: usize, batch: DeviceAttend<'_>) -> Result<()> {
        let raw = batch.planned(self.rows()?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(sys::kvq_pool_attend, layer, raw) }
    }

    #[doc = header!(kvq_pool_extend)]
    pub fn extend(&mut self, layer: usize, batch: Extend<'_>) -> Result<()> {
        self.pool.context().require_host("extend")?;
        let raw = batch.pooled(self.pool.cache().layer(layer)?, self.rows()?)?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.run(sys::kvq_pool_extend, layer, raw) }
    }

    /// Like [`extend`](Self::extend), in the context's memory.
    ///
    /// # Safety
    /// All memory must be where `batch` says and, for a CUDA context, stay there until the stream is done with it.
    pub unsafe fn extend_device(&mut self, layer: usize, batch: DeviceExtend<'_>) -> Result<()> {
        let raw = batch.planned(self.rows()?)?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(sys::kvq_pool_extend, layer, raw) }
    }

    /// # Safety
    /// The memory that `raw` points to must be readable and writable.
    unsafe fn run(&mut self, function: Function, layer: usize, raw: sys::kvq_pool_call) -> Result<()> {
        // SAFETY: guaranteed by the caller; the plan is borrowed exclusively.
        self.pool.context().call(|error| unsafe { function(self.raw(), int(layer), &raw, error) })
    }

    /// Rows of the calls' tensors.
    fn rows(&self) -> Result<usize> {
        self.n_tokens.ok_or_else(|| Error::new(Status::State, "the plan has no batch"))
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::kvq_pool_plan {
        self.handle.get()
    }
}

debug!(PoolPlan, it => it.raw());
