//! Batches: tokens to append to several sequences, queries that attend to them, and both together.
use crate::call::defaults;
use crate::convert::int;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{optional, Raw};
use crate::shape::{self, pointer_of, require_rows, Extent};
use crate::{Dtype, Element, Error, LayerInfo, Result};
use kvq_sys as sys;
use std::os::raw::c_void;

macro_rules! copy {
    ($to:ident, $from:expr, $($field:ident)*) => { $($to.$field = $from.$field;)* };
}

macro_rules! copy_tokens {
    ($to:ident, $from:expr) => {
        copy!($to, $from, k v dtype k_token_stride k_head_stride v_token_stride v_head_stride);
    };
}

macro_rules! copy_queries {
    ($to:ident, $from:expr) => {
        copy!($to, $from, q output q_dtype output_dtype q_token_stride q_head_stride output_token_stride output_head_stride);
        copy!($to, $from, sliding_window logit_softcap mask_slots lse sinks mask);
    };
}

macro_rules! copy_all {
    ($to:ident, $from:expr) => {
        copy_tokens!($to, $from);
        copy_queries!($to, $from);
    };
}

/// Batches of one C struct: the counts and positions of their rows, fields that are set with the lengths checked, in
/// brackets those that may be missing, and the macro that copies what calls on a pool have, too.
macro_rules! batches {
    ($raw:ident($init:ident) $counts:ident $positions:ident $shape:literal, in pools $copy:ident;
     $($name:ident {$($field:ident: $type:ty),*} [$($option:ident: $of:ty),*] $see:literal;)*) => {
        $(#[doc = header!($raw)]
        ///
        #[doc = $see]
        pub struct $name<'a> {
            raw: Raw<sys::$raw>,
            $counts: Option<&'a [i32]>,
            $positions: Option<&'a [i32]>,
            $($field: $type,)*
            $($option: Option<$of>,)*
        }

        impl<'a> $name<'a> {
            setters!($raw);
            optional!($raw, $counts: &'a [i32] = $counts, $positions: &'a [i32] = $positions);

            #[inline]
            fn of($($field: $type),*) -> Self {
                // SAFETY: the function belongs to the struct.
                let raw = Raw(unsafe { defaults(sys::$init) });
                $name { raw, $counts: None, $positions: None, $($field,)* $($option: None),* }
            }

            /// Returns the C struct with counts and positions for this many sequences, and the rows of all of them.
            pub(crate) fn counted(mut self, sequences: usize) -> Result<(sys::$raw, usize)> {
                let rows = shape::total(stringify!($counts), self.$counts, sequences)?;
                if let Some(given) = self.$positions {
                    shape::require(stringify!($positions), given.len(), rows as u128, $shape)?;
                }
                self.raw.$counts = pointer_of(self.$counts);
                self.raw.$positions = pointer_of(self.$positions);
                Ok((*self.raw, rows))
            }

            /// Returns the C struct of a call on a pool, whose plan has the counts and positions.
            pub(crate) fn planned(&self, rows: usize) -> Result<sys::kvq_pool_call> {
                absent(stringify!($counts), self.$counts.is_some())?;
                absent(stringify!($positions), self.$positions.is_some())?;
                absent("rope_positions", !self.raw.rope_positions.is_null())?;
                // SAFETY: the function belongs to the struct.
                let mut raw = unsafe { defaults(sys::kvq_pool_call_init) };
                raw.n_tokens = int(rows);
                $copy!(raw, self.raw);
                Ok(raw)
            }
        })*
    };
}

batches! {
    kvq_append_batch(kvq_append_batch_init) token_counts positions "[tokens]", in pools copy_tokens;
    Append { k: Extent, v: Extent } [rope_positions: &'a [i32]]
    "Takes slices of host memory; a GPU takes [`DeviceAppend`].";
    DeviceAppend {} []
    "Takes addresses in the context's memory (device memory for a CUDA context); see [`Append`] for slices.";
}

batches! {
    kvq_attend_batch(kvq_attend_batch_init) query_counts query_positions "[queries]", in pools copy_queries;
    Attend { q: Extent, output: Extent } [lse: Extent, sinks: Extent, mask: &'a [u32], rope_positions: &'a [i32]]
    "Takes slices of host memory; a GPU takes [`DeviceAttend`].";
    DeviceAttend {} []
    "Takes addresses in the context's memory (device memory for a CUDA context); see [`Attend`] for slices.";
}

batches! {
    kvq_extend_batch(kvq_extend_batch_init) token_counts positions "[tokens]", in pools copy_all;
    Extend { k: Extent, v: Extent, q: Extent, output: Extent }
    [lse: Extent, sinks: Extent, mask: &'a [u32], rope_positions: &'a [i32]]
    "Takes slices of host memory; a GPU takes [`DeviceExtend`].";
    DeviceExtend {} []
    "Takes addresses in the context's memory (device memory for a CUDA context); see [`Extend`] for slices.";
}

/// Refuses what a call on a pool does not have.
fn absent(name: &str, is_given: bool) -> Result<()> {
    if is_given {
        return Err(Error::argument(format!("{name} is given, must be absent: those of the planned batch apply")));
    }
    Ok(())
}

/// Keys and values of a batch.
struct Tokens {
    k: Extent,
    v: Extent,
}

/// Queries of a batch, and where their results go.
struct Queries<'a> {
    q: Extent,
    output: Extent,
    lse: Option<Extent>,
    sinks: Option<Extent>,
    mask: Option<&'a [u32]>,
}

/// Checks a batch's `Tokens` of this many rows by the strides of its C struct, and sets them there.
macro_rules! set_tokens {
    ($raw:ident, $layer:ident, $rows:ident, $tokens:ident) => {
        let Tokens { k, v } = $tokens;
        let shape = |channels| [$rows, $layer.kv_heads, channels];
        require_rows("k", k.length, shape($layer.key_dim), [$raw.k_token_stride, $raw.k_head_stride])?;
        let values = shape::values_of(v, $layer.values_are_key_prefix, |length| {
            require_rows("v", length, shape($layer.value_dim), [$raw.v_token_stride, $raw.v_head_stride])
        })?;
        ($raw.k, $raw.v) = (k.pointer, values);
    };
}

/// The same for `Queries`.
macro_rules! set_queries {
    ($raw:ident, $layer:ident, $rows:ident, $queries:ident) => {
        let Queries { q, output, lse, sinks, mask } = $queries;
        let shape = |channels| [$rows, $layer.q_heads, channels];
        let output_strides = [$raw.output_token_stride, $raw.output_head_stride];
        require_rows("q", q.length, shape($layer.key_dim), [$raw.q_token_stride, $raw.q_head_stride])?;
        require_rows("output", output.length, shape($layer.value_dim), output_strides)?;
        if let Some(lse) = lse {
            shape::require("lse", lse.length, $rows as u128 * $layer.q_heads as u128, "[queries, q_heads]")?;
            $raw.lse = lse.pointer as *mut f32;
        }
        if let Some(sinks) = sinks {
            shape::require("sinks", sinks.length, $layer.q_heads as u128, "[q_heads]")?;
            $raw.sinks = sinks.pointer.cast();
        }
        if let Some(mask) = mask {
            let words = ($raw.mask_slots.max(0) as u128 + 31) / 32;
            shape::require("mask", mask.len(), $rows as u128 * words, "[queries, (mask_slots + 31) / 32]")?;
            $raw.mask = mask.as_ptr();
        }
        ($raw.q, $raw.output) = (q.pointer, output.pointer as *mut c_void);
    };
}

/// Returns the address of the positions by which M-RoPE turns this many rows, after checking their number.
fn streams_of(positions: Option<&[i32]>, rows: usize, shape: &str) -> Result<*const i32> {
    if let Some(given) = positions {
        shape::require("rope_positions", given.len(), rows as u128 * 3, shape)?;
    }
    Ok(pointer_of(positions))
}

/// Setters of the addresses that batches in device memory may have.
macro_rules! device_addresses {
    ($struct:ident, $($name:ident: $type:ty),*) => {
        $(#[doc = header!($struct, $name)]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.raw.$name = $name;
            self
        })*
    };
}

impl<'a> Append<'a> {
    optional!(kvq_append_batch, rope_positions: &'a [i32] = rope_positions);

    /// Keys and values; no values, `&[]`, exactly where they are a prefix of the layer's keys.
    #[inline]
    pub fn new<T: Element>(k: &'a [T], v: &'a [T]) -> Self {
        let mut batch = Append::of(Extent::of(k), Extent::of(v));
        batch.raw.dtype = T::DTYPE.code();
        batch
    }

    /// Returns the C struct for this layer and many sequences, with all lengths checked.
    pub(crate) fn checked(self, layer: &LayerInfo, sequences: usize) -> Result<sys::kvq_append_batch> {
        let (given, positions) = (Tokens { k: self.k, v: self.v }, self.rope_positions);
        let (mut raw, tokens) = self.counted(sequences)?;
        set_tokens!(raw, layer, tokens, given);
        raw.rope_positions = streams_of(positions, tokens, "[tokens, 3]")?;
        Ok(raw)
    }

    /// Returns the C struct of a call on a pool for so many tokens, with all lengths checked.
    pub(crate) fn pooled(self, layer: &LayerInfo, tokens: usize) -> Result<sys::kvq_pool_call> {
        absent("rope_positions", self.rope_positions.is_some())?;
        let mut raw = self.planned(tokens)?;
        let new = Tokens { k: self.k, v: self.v };
        set_tokens!(raw, layer, tokens, new);
        Ok(raw)
    }
}

impl DeviceAppend<'_> {
    /// Keys and values; `v` is null exactly where they are a prefix of the layer's keys.
    pub fn new(k: *const c_void, v: *const c_void, dtype: Dtype) -> Self {
        let mut batch = Self::of();
        (batch.raw.k, batch.raw.v, batch.raw.dtype) = (k, v, dtype.code());
        batch
    }

    device_addresses!(kvq_append_batch, rope_positions: *const i32);
}

impl<'a> Attend<'a> {
    optional!(kvq_attend_batch,
        lse: &'a mut [f32] = Extent::of_mut(lse), sinks: &'a [f32] = Extent::of(sinks),
        mask: &'a [u32] = mask, rope_positions: &'a [i32] = rope_positions);

    /// Queries, and where their results go.
    #[inline]
    pub fn new<Q: Element, O: Element>(q: &'a [Q], output: &'a mut [O]) -> Self {
        let mut batch = Attend::of(Extent::of(q), Extent::of_mut(output));
        (batch.raw.q_dtype, batch.raw.output_dtype) = (Q::DTYPE.code(), O::DTYPE.code());
        batch
    }

    /// Returns the C struct for this layer and many sequences, with all lengths checked.
    pub(crate) fn checked(self, layer: &LayerInfo, sequences: usize) -> Result<sys::kvq_attend_batch> {
        let given = Queries { q: self.q, output: self.output, lse: self.lse, sinks: self.sinks, mask: self.mask };
        let positions = self.rope_positions;
        let (mut raw, queries) = self.counted(sequences)?;
        set_queries!(raw, layer, queries, given);
        raw.rope_positions = streams_of(positions, queries, "[queries, 3]")?;
        Ok(raw)
    }

    /// Returns the C struct of a call on a pool for so many tokens, with all lengths checked.
    pub(crate) fn pooled(self, layer: &LayerInfo, tokens: usize) -> Result<sys::kvq_pool_call> {
        absent("rope_positions", self.rope_positions.is_some())?;
        let mut raw = self.planned(tokens)?;
        let given = Queries { q: self.q, output: self.output, lse: self.lse, sinks: self.sinks, mask: self.mask };
        set_queries!(raw, layer, tokens, given);
        Ok(raw)
    }
}

impl DeviceAttend<'_> {
    /// Queries, and where their results go.
    pub fn new(q: *const c_void, q_dtype: Dtype, output: *mut c_void, output_dtype: Dtype) -> Self {
        let mut batch = Self::of();
        (batch.raw.q, batch.raw.q_dtype) = (q, q_dtype.code());
        (batch.raw.output, batch.raw.output_dtype) = (output, output_dtype.code());
        batch
    }

    device_addresses!(kvq_attend_batch,
        lse: *mut f32, sinks: *const f32, mask: *const u32, rope_positions: *const i32);
}

impl<'a> Extend<'a> {
    optional!(kvq_extend_batch,
        lse: &'a mut [f32] = Extent::of_mut(lse), sinks: &'a [f32] = Extent::of(sinks),
        mask: &'a [u32] = mask, rope_positions: &'a [i32] = rope_positions);

    /// Keys and values, as in [`Append::new`], their queries, and where results go.
    #[inline]
    pub fn new<T: Element, Q: Element, O: Element>(k: &'a [T], v: &'a [T], q: &'a [Q], output: &'a mut [O]) -> Self {
        let mut batch = Extend::of(Extent::of(k), Extent::of(v), Extent::of(q), Extent::of_mut(output));
        batch.raw.dtype = T::DTYPE.code();
        (batch.raw.q_dtype, batch.raw.output_dtype) = (Q::DTYPE.code(), O::DTYPE.code());
        batch
    }

    /// Returns the C struct for this layer and many sequences, with all lengths checked.
    pub(crate) fn checked(self, layer: &LayerInfo, sequences: usize) -> Result<sys::kvq_extend_batch> {
        let new = Tokens { k: self.k, v: self.v };
        let given = Queries { q: self.q, output: self.output, lse: self.lse, sinks: self.sinks, mask: self.mask };
        let positions = self.rope_positions;
        let (mut raw, tokens) = self.counted(sequences)?;
        set_tokens!(raw, layer, tokens, new);
        set_queries!(raw, layer, tokens, given);
        raw.rope_positions = streams_of(positions, tokens, "[tokens, 3]")?;
        Ok(raw)
    }

    /// Returns the C struct of a call on a pool for so many tokens, with all lengths checked.
    pub(crate) fn pooled(self, layer: &LayerInfo, tokens: usize) -> Result<sys::kvq_pool_call> {
        absent("rope_positions", self.rope_positions.is_some())?;
        let mut raw = self.planned(tokens)?;
        let new = Tokens { k: self.k, v: self.v };
        let given = Queries { q: self.q, output: self.output, lse: self.lse, sinks: self.sinks, mask: self.mask };
        set_tokens!(raw, layer, tokens, new);
        set_queries!(raw, layer, tokens, given);
        Ok(raw)
    }
}

impl DeviceExtend<'_> {
    /// Keys and values, as in [`DeviceAppend::new`], their queries, and where results go.
    pub fn new(
        k: *const c_void,
        v: *const c_void,
        dtype: Dtype,
        q: *const c_void,
        q_dtype: Dtype,
        output: *mut c_void,
        output_dtype: Dtype,
    ) -> Self {
        let mut batch = Self::of();
        (batch.raw.k, batch.raw.v, batch.raw.dtype) = (k, v, dtype.code());
        (batch.raw.q, batch.raw.q_dtype) = (q, q_dtype.code());
        (batch.raw.output, batch.raw.output_dtype) = (output, output_dtype.code());
        batch
    }

    device_addresses!(kvq_extend_batch,
        lse: *mut f32, sinks: *const f32, mask: *const u32, rope_positions: *const i32);
}
