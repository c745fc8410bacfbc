//! Codebooks, centres and routers: trained objects of a model, read from files.
use crate::call::{fill, save, Handle};
use crate::convert::int;
use crate::generated::docs::header;
use crate::{
    CentresInfo, CentresLayerInfo, CodebookInfo, CodebookLayerInfo, Context, Result, RouterGroupInfo, RouterInfo,
};
use kvq_sys as sys;
use std::fmt;
use std::sync::Arc;

macro_rules! trained {
    ($name:ident, $handle:ident, $load:ident, $save:ident) => {
        #[doc = header!($handle)]
        ///
        /// Clones are the same object.
        #[derive(Clone)]
        pub struct $name {
            handle: Arc<Handle<sys::$handle>>,
            context: Context,
        }

        impl $name {
            #[cfg(feature = "experimental")]
            pub(crate) fn of(handle: Handle<sys::$handle>, context: &Context) -> Self {
                $name { handle: Arc::new(handle), context: context.clone() }
            }

            #[doc = header!($load)]
            pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
                // SAFETY: the slice has this length and lives until the call returns.
                let handle = context.create(|result, error| unsafe {
                    sys::$load(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
                })?;
                Ok($name { handle: Arc::new(handle), context: context.clone() })
            }

            #[doc = header!($save)]
            pub fn save(&self) -> Result<Vec<u8>> {
                // SAFETY: there are `capacity` bytes at `buffer`.
                save(self.context.panics(), |buffer, capacity, size, error| unsafe {
                    sys::$save(self.raw(), buffer.cast(), capacity, size, error)
                })
            }

            /// Returns the C handle, which this object owns and destroys.
            pub fn raw(&self) -> *mut sys::$handle {
                self.handle.get()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.debug_tuple(stringify!($name)).field(&self.raw()).finish()
            }
        }
    };
}

trained!(Codebook, kvq_codebook, kvq_codebook_load, kvq_codebook_save);
trained!(Centres, kvq_centres, kvq_centres_load, kvq_centres_save);
trained!(Router, kvq_router, kvq_router_load, kvq_router_save);

impl Codebook {
    #[doc = header!(kvq_codebook_describe)]
    pub fn describe(&self) -> Result<CodebookInfo> {
        // SAFETY: kvq_codebook_describe fills this struct, whose strings live as long as the handle.
        unsafe {
            let raw = fill(self.context.panics(), |info, error| sys::kvq_codebook_describe(self.raw(), info, error))?;
            Ok(CodebookInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_codebook_describe_layer)]
    pub fn describe_layer(&self, layer: usize) -> Result<CodebookLayerInfo> {
        // SAFETY: kvq_codebook_describe_layer fills this struct.
        let raw = unsafe {
            fill(self.context.panics(), |info, error| {
                sys::kvq_codebook_describe_layer(self.raw(), int(layer), info, error)
            })?
        };
        Ok(CodebookLayerInfo::from_raw(&raw))
    }
}

impl Centres {
    #[doc = header!(kvq_centres_describe)]
    pub fn describe(&self) -> Result<CentresInfo> {
        // SAFETY: kvq_centres_describe fills this struct, whose strings live as long as the handle.
        unsafe {
            let raw = fill(self.context.panics(), |info, error| sys::kvq_centres_describe(self.raw(), info, error))?;
            Ok(CentresInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_centres_describe_layer)]
    pub fn describe_layer(&self, layer: usize) -> Result<CentresLayerInfo> {
        // SAFETY: kvq_centres_describe_layer fills this struct.
        let raw = unsafe {
            fill(self.context.panics(), |info, error| {
                sys::kvq_centres_describe_layer(self.raw(), int(layer), info, error)
            })?
        };
        Ok(CentresLayerInfo::from_raw(&raw))
    }
}

impl Router {
    #[doc = header!(kvq_router_describe)]
    pub fn describe(&self) -> Result<RouterInfo> {
        // SAFETY: kvq_router_describe fills this struct, whose strings live as long as the handle.
        unsafe {
            let raw = fill(self.context.panics(), |info, error| sys::kvq_router_describe(self.raw(), info, error))?;
            Ok(RouterInfo::from_raw(&raw))
        }
    }

    #[doc = header!(kvq_router_describe_group)]
    pub fn describe_group(&self, group: usize) -> Result<RouterGroupInfo> {
        // SAFETY: kvq_router_describe_group fills this struct.
        let raw = unsafe {
            fill(self.context.panics(), |info, error| {
                sys::kvq_router_describe_group(self.raw(), int(group), info, error)
            })?
        };
        Ok(RouterGroupInfo::from_raw(&raw))
    }
}
