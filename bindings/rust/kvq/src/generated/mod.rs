//! What is made from kvq.h by bindings/generate/generate.py.
pub(crate) mod docs;
#[rustfmt::skip]
pub(crate) mod objects;
pub(crate) mod options;
pub(crate) mod types;
