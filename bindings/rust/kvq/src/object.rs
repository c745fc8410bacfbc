//! Common code of objects and options.
use std::ops::{Deref, DerefMut};

/// A struct of kvq.h inside options. Safe code sets no pointer in it: only copies that live for a call have them, and
/// unsafe functions follow the addresses that a program gave.
#[derive(Clone, Copy)]
pub(crate) struct Raw<T>(pub(crate) T);

// SAFETY: no pointer is followed, see above; the rest is numbers.
unsafe impl<T: Copy> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Raw<T> {}

impl<T> Deref for Raw<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Raw<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Defines an immutable object of a context: its struct, its constructor from a handle, `raw` and `Debug`.
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
            pub(crate) fn of(handle: Handle<sys::$handle>, context: &Context) -> Self {
                $name { handle: Arc::new(handle), context: context.clone() }
            }

            pub(crate) fn context(&self) -> &Context {
                &self.context
            }

            /// Returns the C handle, which this object owns and destroys.
            pub fn raw(&self) -> *mut sys::$handle {
                self.handle.get()
            }
        }

        $crate::object::debug!($name, it => it.raw());
    };
}
pub(crate) use object;

/// Setters of fields that are None by default, with the comments of the C struct's fields.
macro_rules! optional {
    ($struct:ident, $($name:ident: $type:ty = $value:expr),*) => {
        $(#[doc = $crate::generated::docs::header!($struct, $name)]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = Some($value);
            self
        })*
    };
}
pub(crate) use optional;

/// `Debug` as a tuple of one field.
macro_rules! debug {
    ($name:ident, $it:ident => $field:expr) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                out.debug_tuple(stringify!($name)).field(&$field).finish()
            }
        }
    };
}
pub(crate) use debug;

/// `Default` as what `new` returns.
macro_rules! default_is_new {
    ($name:ty) => {
        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}
pub(crate) use default_is_new;
