//! Layers of a cache that differ from its others.
use crate::call::defaults;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::object::{optional, Raw};
use crate::{shape, Result};
use kvq_sys as sys;
use std::fmt;

#[doc = header!(kvq_layer_shape)]
#[derive(Clone)]
pub struct LayerShape {
    raw: Raw<sys::kvq_layer_shape>,
    inv_freq: Option<Vec<f32>>,
}

impl LayerShape {
    setters!(kvq_layer_shape);

    /// Returns a shape like that of the cache's other layers, for one layer.
    pub fn new(first_layer: usize) -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::kvq_layer_shape_init) });
        LayerShape { raw, inv_freq: None }.first_layer(first_layer)
    }

    optional!(kvq_layer_shape, inv_freq: impl Into<Vec<f32>> = inv_freq.into());

    /// Returns the struct in C, which is valid as long as the shape; its place in the options is for messages.
    pub(crate) fn filled(&self, at: usize, options: &sys::kvq_cache_options) -> Result<sys::kvq_layer_shape> {
        let mut raw = *self.raw;
        if let Some(inv_freq) = &self.inv_freq {
            let or = |given: i32, usual: i32| if given != 0 { given } else { usual };
            let dim = |given: i32| or(given, options.head_dim);
            let first = if raw.values_are_key_prefix != 0 { dim(raw.value_dim) } else { 0 };
            // As in the library, 0 means all channels; it refuses numbers that leave none.
            let left = dim(raw.key_dim).saturating_sub(or(raw.rotary_begin, first));
            let rotated = or(or(raw.rotary_dim, options.rotary_dim), left);
            let (name, pairs) = (format!("shapes[{at}].inv_freq"), rotated.max(0) as u128 / 2);
            shape::require(&name, inv_freq.len(), pairs, "[rotary_dim / 2]")?;
            raw.inv_freq = inv_freq.as_ptr();
        }
        Ok(raw)
    }
}

impl fmt::Debug for LayerShape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let shape = [raw.first_layer, raw.n_layers, raw.q_heads, raw.kv_heads, raw.key_dim, raw.value_dim];
        out.debug_struct("LayerShape")
            .field("first_layer, layers, q_heads, kv_heads, key_dim, value_dim", &shape)
            .field("values_are_key_prefix", &(raw.values_are_key_prefix != 0))
            .finish()
    }
}
