//! Common code of policies, codebooks, centres and routers.

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

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.debug_tuple(stringify!($name)).field(&self.raw()).finish()
            }
        }
    };
}
pub(crate) use object;
