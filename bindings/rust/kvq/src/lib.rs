//! A compressed key/value cache for language models, attended to in compressed form.
//!
//! An inference engine computes queries, keys and values; [`Cache`] keeps the keys and values in 1 to 16 bits per
//! scalar and computes attention directly on them. [`Matrix`] does the same for the weights of linear layers.
//!
//! ```
//! use kvq::{Attend, Cache, CacheOptions, Context, ContextOptions, Policy, Sequence};
//!
//! # fn main() -> kvq::Result<()> {
//! let context = Context::new(ContextOptions::new())?;
//! let policy = Policy::load(&context, "int4+hadamard")?;
//! let cache = Cache::new(&context, CacheOptions::new(1, 8, 2, 64), &policy)?;
//! let mut sequence = Sequence::new(&cache)?;
//!
//! let (k, v) = (vec![0.5f32; 2 * 64], vec![1.0f32; 2 * 64]); // a token: [kv_heads, head_dim]
//! sequence.append(0, &k, &v)?;
//! let (q, mut output) = (vec![0.1f32; 8 * 64], vec![0.0f32; 8 * 64]);
//! cache.attend(0, &[&sequence], Attend::new(&q, &mut output))?;
//! assert!(output.iter().all(|x| (x - 1.0).abs() < 1e-3));
//! # Ok(())
//! # }
//! ```
//!
//! Descriptions of items are those of the header `kvq.h`, where `NULL` is what this crate calls `None` or does not call
//! at all, and `n` the number of rows in a slice. [`sys`] is the whole interface in C; with the feature `experimental` it has
//! what may change in a minor version, for which the `raw` handles of objects are meant.
//!
//! Objects may be dropped in any order: what others still need lives with them. All of them are `Send` and `Sync`, and
//! what the library wants to use alone is borrowed by `&mut`.
#![deny(unsafe_op_in_unsafe_fn)]

pub use kvq_sys as sys;

mod append;
mod attend;
mod cache;
mod call;
mod context;
mod convert;
mod counts;
mod element;
mod error;
mod generated;
mod hooks;
mod matrix;
mod object;
mod policy;
mod sequence;
mod shape;

pub use append::{Append, DeviceAppend};
pub use attend::{Attend, DeviceAttend};
pub use cache::{Cache, CacheOptions};
pub use context::{cpu_isas, device_describe, device_describe_by, Context, ContextOptions};
pub use element::{Bf16, Element, F16};
pub use error::{api_version, version, Error, Result};
pub use generated::objects::{Centres, Codebook, Router};
pub use generated::types::*;
pub use hooks::{DeviceAllocator, HostAllocator};
pub use matrix::{scheme_bits, schemes, Matrix, QuantizeOptions};
pub use policy::Policy;
pub use sequence::{CompressOptions, Compressed, Decoded, Sequence};

/// The first example of the README is run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
