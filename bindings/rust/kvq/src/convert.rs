//! Conversion of numbers and text to and from C.
use crate::{Error, Status};
use std::ffi::{CStr, CString};
use std::os::raw::c_char;

/// Saturates numbers too large for C at the largest one, which the library refuses, naming the argument.
pub(crate) fn int(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) fn long(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a count from the library, which is never negative.
pub(crate) fn count(value: impl TryInto<usize>) -> usize {
    value.try_into().unwrap_or(0)
}

/// Reads text in an array up to its NUL; invalid UTF-8 is replaced.
pub(crate) fn text_of(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// # Safety
/// `pointer` must be NULL or point to a NUL-terminated string.
pub(crate) unsafe fn text_at(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Converts text for C; refuses a NUL, which would end it.
pub(crate) fn c_string(text: &str, name: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|error| {
        let at = error.nul_position();
        Error::new(Status::Argument, format!("{name} has a NUL at byte {at}"))
    })
}
