//! Scales of channels.
use crate::call::call;
use crate::convert::int;
use crate::generated::docs::header;
use crate::{Centres, Result};
use kvq_sys as sys;
use std::ptr;

/// Scales of one layer's channels, `[kv_heads, head_dim]`; `None` where centres have none of that side.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerScales {
    /// Of keys; both channels of a RoPE pair have the same.
    pub key_scales: Option<Vec<f32>>,
    /// Of values.
    pub value_scales: Option<Vec<f32>>,
    /// What is subtracted from values before scaling.
    pub value_offsets: Option<Vec<f32>>,
}

fn pointer(numbers: &mut Option<Vec<f32>>) -> *mut f32 {
    numbers.as_mut().map_or(ptr::null_mut(), |it| it.as_mut_ptr())
}

impl Centres {
    #[doc = header!(kvq_centres_read_scales)]
    pub fn read_scales(&self, layer: usize) -> Result<LayerScales> {
        let info = self.describe()?;
        let room = |present: bool| present.then(|| vec![0.0; info.kv_heads * info.head_dim]);
        let mut scales = LayerScales {
            key_scales: room(info.key_scales != 0),
            value_scales: room(info.value_scales != 0),
            value_offsets: room(info.value_scales != 0),
        };
        let keys = pointer(&mut scales.key_scales);
        let (values, offsets) = (pointer(&mut scales.value_scales), pointer(&mut scales.value_offsets));
        // SAFETY: there are as many numbers at each pointer that is not null as the centres have channels.
        call(self.context().panics(), |error| unsafe {
            sys::kvq_centres_read_scales(self.raw(), int(layer), keys, values, offsets, error)
        })?;
        Ok(scales)
    }
}
