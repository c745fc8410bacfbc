//! Batches of queries.
use crate::call::defaults;
use crate::counts::{counts_setters, Counts};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::shape::{self, Extent, Rows};
use crate::{CacheInfo, Dtype, Element, Result};
use kvq_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

#[doc = header!(kvq_attend_batch)]
///
/// Takes slices of host memory; a GPU takes [`DeviceAttend`].
pub struct Attend<'a> {
    raw: sys::kvq_attend_batch,
    counts: Counts<'a>,
    q: Extent,
    output: Extent,
    lse: Option<Extent>,
    sinks: Option<Extent>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> Attend<'a> {
    setters!(kvq_attend_batch);

    /// Queries, and where their results go.
    #[inline]
    pub fn new<Q: Element, O: Element>(q: &'a [Q], output: &'a mut [O]) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = unsafe { defaults(sys::kvq_attend_batch_init) };
        raw.q_dtype = Q::DTYPE.code();
        raw.output_dtype = O::DTYPE.code();
        let (q, output) = (Extent::of(q), Extent::of_mut(output));
        let borrowed = PhantomData;
        Attend { raw, counts: Counts::default(), q, output, lse: None, sinks: None, borrowed }
    }

    counts_setters!(kvq_attend_batch, query_counts, query_positions, "[queries]");

    #[doc = header!(kvq_attend_batch, lse)]
    #[must_use]
    pub fn lse(mut self, lse: &'a mut [f32]) -> Self {
        self.lse = Some(Extent::of_mut(lse));
        self
    }

    #[doc = header!(kvq_attend_batch, sinks)]
    #[must_use]
    pub fn sinks(mut self, sinks: &'a [f32]) -> Self {
        self.sinks = Some(Extent::of(sinks));
        self
    }

    /// Returns the C struct for this many sequences, with all lengths checked.
    pub(crate) fn checked(mut self, info: &CacheInfo, sequences: usize) -> Result<sys::kvq_attend_batch> {
        let queries = self.set_counts(sequences)?;
        let raw = &mut self.raw;
        let rows = |token_stride, head_stride| Rows {
            count: queries,
            heads: info.q_heads,
            channels: info.head_dim,
            token_stride,
            head_stride,
        };
        rows(raw.q_token_stride, raw.q_head_stride).require("q", self.q.length)?;
        rows(raw.output_token_stride, raw.output_head_stride).require("output", self.output.length)?;
        if let Some(lse) = self.lse {
            shape::require("lse", lse.length, queries as u128 * info.q_heads as u128, "[queries, q_heads]")?;
            raw.lse = lse.pointer as *mut f32;
        }
        if let Some(sinks) = self.sinks {
            shape::require("sinks", sinks.length, info.q_heads as u128, "[q_heads]")?;
            raw.sinks = sinks.pointer.cast();
        }
        raw.q = self.q.pointer;
        raw.output = self.output.pointer as *mut c_void;
        Ok(self.raw)
    }
}

#[doc = header!(kvq_attend_batch)]
///
/// Takes addresses in the context's memory (device memory for a CUDA context); see [`Attend`] for slices.
pub struct DeviceAttend<'a> {
    raw: sys::kvq_attend_batch,
    counts: Counts<'a>,
}

impl<'a> DeviceAttend<'a> {
    setters!(kvq_attend_batch);

    /// Queries, and where their results go.
    pub fn new(q: *const c_void, q_dtype: Dtype, output: *mut c_void, output_dtype: Dtype) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = unsafe { defaults(sys::kvq_attend_batch_init) };
        raw.q = q;
        raw.q_dtype = q_dtype.code();
        raw.output = output;
        raw.output_dtype = output_dtype.code();
        DeviceAttend { raw, counts: Counts::default() }
    }

    counts_setters!(kvq_attend_batch, query_counts, query_positions, "[queries]");

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

    pub(crate) fn checked(mut self, sequences: usize) -> Result<sys::kvq_attend_batch> {
        self.set_counts(sequences)?;
        Ok(self.raw)
    }
}
