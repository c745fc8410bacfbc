//! Numbers and text on their way to C and back.
use crate::{Error, Status};
use std::ffi::{CStr, CString};
use std::os::raw::c_char;

/// What is too large for C becomes the largest number, which the library refuses by the argument's name.
pub(crate) fn int(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) fn long(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A count of the library, which is never negative.
pub(crate) fn count(value: impl TryInto<usize>) -> usize {
    value.try_into().unwrap_or(0)
}

/// Text in an array, up to its NUL. Bytes that are no UTF-8 are replaced.
pub(crate) fn text_of(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// # Safety
/// `pointer` is NULL or at a string that ends with a NUL.
pub(crate) unsafe fn text_at(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's word.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Text for C, where a NUL would end it.
pub(crate) fn c_string(text: &str, name: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|error| {
        let at = error.nul_position();
        Error::new(Status::Argument, format!("{name} has a NUL at byte {at}"))
    })
}
