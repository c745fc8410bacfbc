//! Codebooks, centres and routers: what was trained for a model, and is read from files.
use crate::call::{fill, save, Handle};
use crate::convert::int;
use crate::generated::docs::header;
use crate::{
    CentresInfo, CentresLayerInfo, CodebookInfo, CodebookLayerInfo, Context, Result, RouterGroupInfo, RouterInfo,
};
use kvq_sys as sys;
use std::fmt;
use std::sync::Arc;

/// An immutable object of a context: its struct, and how one is made of a handle, shown and called in C.
macro_rules! object {
    ($name:ident, $handle:ident) => {
        #[doc = header!($handle)]
        ///
        /// Clones are the same object.
        #[derive(Clone)]
        pub struct $name {
            handle: Arc<Handle<sys::$handle>>,
            context: Context,
        }

        impl $name {
            fn of(handle: Handle<sys::$handle>, context: &Context) -> Self {
                $name { handle: Arc::new(handle), context: context.clone() }
            }

            /// The handle in C, which is this object's: not to be destroyed.
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
pub(crate) use object;

macro_rules! trained {
    ($name:ident, $handle:ident, $load:ident, $save:ident, $describe:ident $info:ident,
     $part:ident $describe_part:ident $describe_part_in_c:ident $part_info:ident) => {
        object!($name, $handle);

        impl $name {
            #[doc = header!($load)]
            pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
                // SAFETY: the slice has this length and lives until the call returns.
                let handle = context.create(|result, error| unsafe {
                    sys::$load(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
                })?;
                Ok($name::of(handle, context))
            }

            #[doc = header!($save)]
            pub fn save(&self) -> Result<Vec<u8>> {
                // SAFETY: there are `capacity` bytes at `buffer`.
                save(self.context.panics(), |buffer, capacity, size, error| unsafe {
                    sys::$save(self.raw(), buffer.cast(), capacity, size, error)
                })
            }

            #[doc = header!($describe)]
            pub fn describe(&self) -> Result<$info> {
                // SAFETY: the function fills this struct, whose strings live as long as the handle.
                unsafe {
                    let raw = fill(self.context.panics(), |info, error| sys::$describe(self.raw(), info, error))?;
                    Ok($info::from_raw(&raw))
                }
            }

            #[doc = header!($describe_part_in_c)]
            pub fn $describe_part(&self, $part: usize) -> Result<$part_info> {
                // SAFETY: the function fills this struct.
                let raw = unsafe {
                    fill(self.context.panics(), |info, error| {
                        sys::$describe_part_in_c(self.raw(), int($part), info, error)
                    })?
                };
                Ok($part_info::from_raw(&raw))
            }
        }
    };
}

trained!(Codebook, kvq_codebook, kvq_codebook_load, kvq_codebook_save, kvq_codebook_describe CodebookInfo,
         layer describe_layer kvq_codebook_describe_layer CodebookLayerInfo);
trained!(Centres, kvq_centres, kvq_centres_load, kvq_centres_save, kvq_centres_describe CentresInfo,
         layer describe_layer kvq_centres_describe_layer CentresLayerInfo);
trained!(Router, kvq_router, kvq_router_load, kvq_router_save, kvq_router_describe RouterInfo,
         group describe_group kvq_router_describe_group RouterGroupInfo);
