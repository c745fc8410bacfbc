//! Element types of tensors.
use crate::Dtype;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::F16 {}
    impl Sealed for super::Bf16 {}
}

/// Types that tensors are made of: `f32`, [`F16`] and [`Bf16`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its name in C.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

macro_rules! half {
    ($name:ident, $dtype:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u16);

        impl Element for $name {
            const DTYPE: Dtype = Dtype::$dtype;
        }

        impl $name {
            /// Views bits as numbers.
            pub fn from_bits(bits: &[u16]) -> &[Self] {
                // SAFETY: the type is transparent.
                unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
            }

            /// Views bits as mutable numbers.
            pub fn from_bits_mut(bits: &mut [u16]) -> &mut [Self] {
                // SAFETY: the type is transparent, and the slice is borrowed as long as the result.
                unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
            }

            /// Views numbers as bits.
            pub fn to_bits(numbers: &[Self]) -> &[u16] {
                // SAFETY: the type is transparent.
                unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) }
            }
        }
    };
}

half!(F16, F16, "The bits of an IEEE 754 binary16 number.");
half!(Bf16, Bf16, "The bits of a bfloat16 number: the upper half of a binary32.");
