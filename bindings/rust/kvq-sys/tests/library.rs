//! The library that was found, by its interface in C alone.
use kvq_sys::*;
use std::ffi::CStr;
use std::mem::{size_of, MaybeUninit};
use std::ptr;

#[test]
fn a_context_comes_and_goes_and_an_error_names_its_argument() {
    let mut error = MaybeUninit::<kvq_error>::uninit();
    let mut context = ptr::null_mut();
    let mut info = MaybeUninit::<kvq_context_info>::zeroed();
    // SAFETY: as kvq.h says.
    unsafe {
        kvq_error_init(error.as_mut_ptr(), size_of::<kvq_error>());
        assert_eq!(kvq_context_create(ptr::null(), &mut context, error.as_mut_ptr()), KVQ_OK);
        (*info.as_mut_ptr()).struct_size = size_of::<kvq_context_info>() as u32;
        assert_eq!(kvq_context_describe(context, info.as_mut_ptr(), error.as_mut_ptr()), KVQ_OK);
        assert_eq!(info.assume_init_ref().device, KVQ_DEVICE_CPU);
        assert_eq!(kvq_context_describe(context, ptr::null_mut(), error.as_mut_ptr()), KVQ_E_ARGUMENT);
        let message = CStr::from_ptr(error.assume_init_ref().message.as_ptr());
        assert!(message.to_str().unwrap().contains("info"));
        kvq_context_destroy(context);
    }
}
