// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! Methods that follow from the header by rules, and types that have no others.
use crate::call::{fill, save, Handle};
use crate::convert::int;
use crate::generated::docs::header;
use crate::object::object;
use crate::*;
use kvq_sys as sys;
use std::fmt;
use std::sync::Arc;

impl Policy {
    #[doc = header!(kvq_policy_save)]
    pub fn save(&self) -> Result<String> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_policy_save(self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    #[doc = header!(kvq_policy_describe)]
    pub fn describe(&self) -> Result<PolicyInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_policy_describe(self.raw(), info, error))?;
            Ok(PolicyInfo::from_raw(&raw))
        }
    }
}

object!(Codebook, kvq_codebook);

impl Codebook {
    #[doc = header!(kvq_codebook_load)]
    pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
        // SAFETY: the slice has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_codebook_load(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
        })?;
        Ok(Self::of(handle, context))
    }

    #[doc = header!(kvq_codebook_save)]
    pub fn save(&self) -> Result<Vec<u8>> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_codebook_save(self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(bytes)
    }

    #[doc = header!(kvq_codebook_describe)]
    pub fn describe(&self) -> Result<CodebookInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_codebook_describe(self.raw(), info, error))?;
            Ok(CodebookInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_codebook_describe_layer)]
    pub fn describe_layer(&self, layer: usize) -> Result<CodebookLayerInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_codebook_describe_layer(self.raw(), int(layer), info, error))?;
            Ok(CodebookLayerInfo::from_raw(&raw))
        }
    }
}

object!(Centres, kvq_centres);

impl Centres {
    #[doc = header!(kvq_centres_load)]
    pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
        // SAFETY: the slice has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_centres_load(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
        })?;
        Ok(Self::of(handle, context))
    }

    #[doc = header!(kvq_centres_save)]
    pub fn save(&self) -> Result<Vec<u8>> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_centres_save(self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(bytes)
    }

    #[doc = header!(kvq_centres_describe)]
    pub fn describe(&self) -> Result<CentresInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_centres_describe(self.raw(), info, error))?;
            Ok(CentresInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_centres_describe_layer)]
    pub fn describe_layer(&self, layer: usize) -> Result<CentresLayerInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_centres_describe_layer(self.raw(), int(layer), info, error))?;
            Ok(CentresLayerInfo::from_raw(&raw))
        }
    }
}

object!(Router, kvq_router);

impl Router {
    #[doc = header!(kvq_router_load)]
    pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
        // SAFETY: the slice has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_router_load(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
        })?;
        Ok(Self::of(handle, context))
    }

    #[doc = header!(kvq_router_save)]
    pub fn save(&self) -> Result<Vec<u8>> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_router_save(self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(bytes)
    }

    #[doc = header!(kvq_router_describe)]
    pub fn describe(&self) -> Result<RouterInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_router_describe(self.raw(), info, error))?;
            Ok(RouterInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_router_describe_group)]
    pub fn describe_group(&self, group: usize) -> Result<RouterGroupInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_router_describe_group(self.raw(), int(group), info, error))?;
            Ok(RouterGroupInfo::from_raw(&raw))
        }
    }
}

impl Cache {
    #[doc = header!(kvq_cache_describe_layer)]
    pub fn describe_layer(&self, layer: usize) -> Result<LayerInfo> {
        // SAFETY: the struct belongs to the function, and its strings live as long as the handle.
        unsafe {
            let raw = fill(self.context().panics(), |info, error| sys::kvq_cache_describe_layer(self.raw(), int(layer), info, error))?;
            Ok(LayerInfo::from_raw(&raw))
        }
    }
}

impl Sequence {
    #[doc = header!(kvq_sequence_truncate)]
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        // SAFETY: the sequence is borrowed exclusively.
        self.change(|cache, sequence, error| unsafe { sys::kvq_sequence_truncate(cache, sequence, int(length), error) })
    }

    #[doc = header!(kvq_sequence_reserve)]
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        // SAFETY: the sequence is borrowed exclusively.
        self.change(|cache, sequence, error| unsafe { sys::kvq_sequence_reserve(cache, sequence, int(tokens), error) })
    }

    #[doc = header!(kvq_sequence_room)]
    pub fn room(&self, layer: usize) -> Result<usize> {
        // SAFETY: the number lives until the call returns.
        self.number(|number, error| unsafe { sys::kvq_sequence_room(self.raw(), int(layer), number, error) })
    }

    #[doc = header!(kvq_sequence_length)]
    pub fn length(&self, layer: usize) -> Result<usize> {
        // SAFETY: the number lives until the call returns.
        self.number(|number, error| unsafe { sys::kvq_sequence_length(self.raw(), int(layer), number, error) })
    }

    #[doc = header!(kvq_sequence_slots)]
    pub fn slots(&self, layer: usize, kv_head: usize) -> Result<usize> {
        // SAFETY: the number lives until the call returns.
        self.number(|number, error| unsafe { sys::kvq_sequence_slots(self.raw(), int(layer), int(kv_head), number, error) })
    }

    #[doc = header!(kvq_sequence_save)]
    pub fn save(&self) -> Result<Vec<u8>> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let _reading = self.reading()?;
        let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_sequence_save(self.cache().raw(), self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(bytes)
    }
}
