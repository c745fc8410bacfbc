//! Tokens for several sequences.
use crate::call::defaults;
use crate::counts::{counts_setters, Counts};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::shape::{Extent, Rows};
use crate::{CacheInfo, Dtype, Element, Result};
use kvq_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

#[doc = header!(kvq_append_batch)]
///
/// Takes slices of host memory; a GPU takes [`DeviceAppend`].
pub struct Append<'a> {
    raw: sys::kvq_append_batch,
    counts: Counts<'a>,
    k: Extent,
    v: Extent,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Append<'a> {
    setters!(kvq_append_batch);

    /// Keys and values.
    #[inline]
    pub fn new<T: Element>(k: &'a [T], v: &'a [T]) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = unsafe { defaults(sys::kvq_append_batch_init) };
        raw.dtype = T::DTYPE.code();
        let (k, v, borrowed) = (Extent::of(k), Extent::of(v), PhantomData);
        Append { raw, counts: Counts::default(), k, v, borrowed }
    }

    counts_setters!(kvq_append_batch, token_counts, positions, "[tokens]");

    /// Returns the C struct for this many sequences, with all lengths checked.
    pub(crate) fn checked(mut self, info: &CacheInfo, sequences: usize) -> Result<sys::kvq_append_batch> {
        let count = self.set_counts(sequences)?;
        let raw = &mut self.raw;
        let rows = |token_stride, head_stride| Rows {
            count,
            heads: info.kv_heads,
            channels: info.head_dim,
            token_stride,
            head_stride,
        };
        rows(raw.k_token_stride, raw.k_head_stride).require("k", self.k.length)?;
        rows(raw.v_token_stride, raw.v_head_stride).require("v", self.v.length)?;
        raw.k = self.k.pointer;
        raw.v = self.v.pointer;
        Ok(self.raw)
    }
}

#[doc = header!(kvq_append_batch)]
///
/// Takes addresses in the context's memory (device memory for a CUDA context); see [`Append`] for slices.
pub struct DeviceAppend<'a> {
    raw: sys::kvq_append_batch,
    counts: Counts<'a>,
}

impl<'a> DeviceAppend<'a> {
    setters!(kvq_append_batch);

    /// Keys and values.
    pub fn new(k: *const c_void, v: *const c_void, dtype: Dtype) -> Self {
        // SAFETY: the function belongs to the struct.
        let mut raw = unsafe { defaults(sys::kvq_append_batch_init) };
        raw.k = k;
        raw.v = v;
        raw.dtype = dtype.code();
        DeviceAppend { raw, counts: Counts::default() }
    }

    counts_setters!(kvq_append_batch, token_counts, positions, "[tokens]");

    pub(crate) fn checked(mut self, sequences: usize) -> Result<sys::kvq_append_batch> {
        self.set_counts(sequences)?;
        Ok(self.raw)
    }
}
