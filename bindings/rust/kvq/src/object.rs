//! Common code of objects and options.

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
