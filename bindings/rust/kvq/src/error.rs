//! Errors, and the version of the loaded library.
use crate::convert::{text_at, text_of};
use crate::Status;
use kvq_sys as sys;
use std::fmt;

/// Failure of a call: a status, and a message that names the argument and its value. Every object is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    backend_code: i32,
    message: String,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Error { status, backend_code: 0, message: message.into() }
    }

    pub(crate) fn from_raw(status: sys::kvq_status, raw: &sys::kvq_error) -> Self {
        Error { status: Status::from_code(status), backend_code: raw.backend_code, message: text_of(&raw.message) }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Error::new(Status::Argument, message)
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the error code of the device's library; 0 if none.
    pub fn backend_code(&self) -> i32 {
        self.backend_code
    }

    /// Returns the English message, which names the argument and its value.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}

impl Status {
    #[doc = crate::generated::docs::header!(kvq_status_name)]
    pub fn name(self) -> String {
        // SAFETY: the library returns a string that is never freed.
        unsafe { text_at(sys::kvq_status_name(self.code())) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name())
    }
}

#[doc = crate::generated::docs::header!(kvq_version_string)]
pub fn version() -> String {
    // SAFETY: the library returns a string that is never freed.
    unsafe { text_at(sys::kvq_version_string()) }
}

#[doc = crate::generated::docs::header!(kvq_api_version)]
pub fn api_version() -> i32 {
    // SAFETY: takes nothing and returns a number.
    unsafe { sys::kvq_api_version() }
}

/// Refuses a library older than the header that this crate was generated from.
pub(crate) fn require_version() -> Result<()> {
    let (found, needed) = (api_version(), sys::KVQ_API_VERSION);
    if found >= needed {
        return Ok(());
    }
    let version = version();
    Err(Error::new(
        Status::Unsupported,
        format!("libkvq {version} has version {found} of the interface, but this program needs version {needed}"),
    ))
}
