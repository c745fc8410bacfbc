//! What is made from kvq.h by bindings/generate/generate.py.
pub(crate) mod docs;
pub(crate) mod options;
pub(crate) mod types;
