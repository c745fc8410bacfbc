//! A compressed key/value cache for language models, with attention computed on the compressed form.
//!
//! An inference engine computes queries, keys and values; [`Cache`] stores the keys and values in 1 to 16 bits per
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
//! Items are described by the comments of `kvq.h`, where `NULL` stands for `None` or an argument that this crate omits,
//! and `n` for the number of rows in a slice. [`sys`] is the whole C API. With the feature `experimental` it includes the
//! functions that may change in a minor version; they take the `raw` handles of objects.
//!
//! Objects may be dropped in any order: they keep what they need alive. All of them are `Send` and `Sync`; calls that
//! need exclusive use borrow by `&mut`.
#![deny(unsafe_op_in_unsafe_fn)]

pub use kvq_sys as sys;

mod batches;
mod cache;
mod call;
mod centres;
mod context;
mod convert;
mod element;
mod error;
mod generated;
mod hooks;
mod matrix;
mod object;
mod policy;
mod pool;
mod sequence;
mod shape;
mod shapes;
mod step;

pub use batches::{Append, Attend, DeviceAppend, DeviceAttend, DeviceExtend, Extend};
pub use cache::{Cache, CacheOptions, LoadOptions};
pub use centres::LayerScales;
pub use context::{cpu_isas, device_describe, device_describe_by, Context, ContextOptions};
pub use element::{Bf16, Element, F16};
pub use error::{api_version, version, Error, Result};
pub use generated::objects::{Centres, Codebook, Router};
pub use generated::types::*;
pub use hooks::{DeviceAllocator, HostAllocator};
pub use matrix::{scheme_bits, schemes, Matrix, QuantizeOptions};
pub use policy::Policy;
pub use pool::{BlockRange, DevicePoolBatch, Pool, PoolBatch, PoolLimits, PoolOptions, PoolPlan};
pub use sequence::{CompressOptions, Compressed, Decoded, Sequence};
pub use shapes::LayerShape;
pub use step::Step;

/// Runs the first example of the README with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
