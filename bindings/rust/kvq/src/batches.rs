//! Batches: tokens to append to several sequences, and queries that attend to them.
use crate::call::defaults;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{optional, Raw};
use crate::shape::{self, pointer_of, require_rows, Extent};
use crate::{CacheInfo, Dtype, Element, Result};
use kvq_sys as sys;
use std::os::raw::c_void;

/// Batches of one C struct: the counts and positions of their rows, and fields that are set with the lengths checked.
macro_rules! batches {
    ($raw:ident($init:ident) $counts:ident $positions:ident $shape:literal;
     $($name:ident {$($field:ident: $type:ty),*} $see:literal;)*) => {
        $(#[doc = header!($raw)]
        ///
        #[doc = $see]
        pub struct $name<'a> {
            raw: Raw<sys::$raw>,
            $counts: Option<&'a [i32]>,
            $positions: Option<&'a [i32]>,
            $($field: $type,)*
        }

        impl<'a> $name<'a> {
            setters!($raw);
            optional!($raw, $counts: &'a [i32] = $counts, $positions: &'a [i32] = $positions);

            #[inline]
            fn of($($field: $type),*) -> Self {
                // SAFETY: the function belongs to the struct.
                let raw = Raw(unsafe { defaults(sys::$init) });
                $name { raw, $counts: None, $positions: None, $($field),* }
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
        })*
    };
}

batches! {
    kvq_append_batch(kvq_append_batch_init) token_counts positions "[tokens]";
    Append { k: Extent, v: Extent } "Takes slices of host memory; a GPU takes [`DeviceAppend`].";
    DeviceAppend {}
    "Takes addresses in the context's memory (device memory for a CUDA context); see [`Append`] for slices.";
}

batches! {
    kvq_attend_batch(kvq_attend_batch_init) query_counts query_positions "[queries]";
    Attend { q: Extent, output: Extent, lse: Option<Extent>, sinks: Option<Extent> }
    "Takes slices of host memory; a GPU takes [`DeviceAttend`].";
    DeviceAttend {}
    "Takes addresses in the context's memory (device memory for a CUDA context); see [`Attend`] for slices.";
}

impl<'a> Append<'a> {
    /// Keys and values.
    #[inline]
    pub fn new<T: Element>(k: &'a [T], v: &'a [T]) -> Self {
        let mut batch = Append::of(Extent::of(k), Extent::of(v));
        batch.raw.dtype = T::DTYPE.code();
        batch
    }

    /// Returns the C struct for this many sequences, with all lengths checked.
    pub(crate) fn checked(self, info: &CacheInfo, sequences: usize) -> Result<sys::kvq_append_batch> {
        let (k, v) = (self.k, self.v);
        let (mut raw, tokens) = self.counted(sequences)?;
        let shape = [tokens, info.kv_heads, info.head_dim];
        require_rows("k", k.length, shape, [raw.k_token_stride, raw.k_head_stride])?;
        require_rows("v", v.length, shape, [raw.v_token_stride, raw.v_head_stride])?;
        (raw.k, raw.v) = (k.pointer, v.pointer);
        Ok(raw)
    }
}

impl DeviceAppend<'_> {
    /// Keys and values.
    pub fn new(k: *const c_void, v: *const c_void, dtype: Dtype) -> Self {
        let mut batch = Self::of();
        (batch.raw.k, batch.raw.v, batch.raw.dtype) = (k, v, dtype.code());
        batch
    }
}

impl<'a> Attend<'a> {
    optional!(kvq_attend_batch, lse: &'a mut [f32] = Extent::of_mut(lse), sinks: &'a [f32] = Extent::of(sinks));

    /// Queries, and where their results go.
    #[inline]
    pub fn new<Q: Element, O: Element>(q: &'a [Q], output: &'a mut [O]) -> Self {
        let mut batch = Attend::of(Extent::of(q), Extent::of_mut(output), None, None);
        (batch.raw.q_dtype, batch.raw.output_dtype) = (Q::DTYPE.code(), O::DTYPE.code());
        batch
    }

    /// Returns the C struct for this many sequences, with all lengths checked.
    pub(crate) fn checked(self, info: &CacheInfo, sequences: usize) -> Result<sys::kvq_attend_batch> {
        let (q, output, lse, sinks) = (self.q, self.output, self.lse, self.sinks);
        let (mut raw, queries) = self.counted(sequences)?;
        let shape = [queries, info.q_heads, info.head_dim];
        require_rows("q", q.length, shape, [raw.q_token_stride, raw.q_head_stride])?;
        require_rows("output", output.length, shape, [raw.output_token_stride, raw.output_head_stride])?;
        if let Some(lse) = lse {
            shape::require("lse", lse.length, queries as u128 * info.q_heads as u128, "[queries, q_heads]")?;
            raw.lse = lse.pointer as *mut f32;
        }
        if let Some(sinks) = sinks {
            shape::require("sinks", sinks.length, info.q_heads as u128, "[q_heads]")?;
            raw.sinks = sinks.pointer.cast();
        }
        (raw.q, raw.output) = (q.pointer, output.pointer as *mut c_void);
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

    #[doc = header!(kvq_attend_batch, lse)]
    #[must_use]
    pub fn lse(mut self, lse: *mut f32) -> Self {
        self.raw.lse = lse;
        self
    }

    #[doc = header!(kvq_attend_batch, sinks)]
    #[must_use]
    pub fn sinks(mut self, sinks: *const f32) -> Self {
        self.raw.sinks = sinks;
        self
    }
}
