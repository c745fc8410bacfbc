//! What policies, codebooks, centres and routers have in common.

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
            pub(crate) fn of(handle: Handle<sys::$handle>, context: &Context) -> Self {
                $name { handle: Arc::new(handle), context: context.clone() }
            }

            pub(crate) fn context(&self) -> &Context {
                &self.context
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
