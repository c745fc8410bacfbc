//! What went wrong, and the version of the library that was found.
use crate::convert::{text_at, text_of};
use crate::Status;
use kvq_sys as sys;
use std::fmt;

/// Why a call failed: a status, and a message that names the argument and its value. Every object is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    backend_code: i32,
    message: String,
}

/// What a call gives.
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

    /// What kind of failure it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Code of the device's own library, 0 if none.
    pub fn backend_code(&self) -> i32 {
        self.backend_code
    }

    /// English text that names the argument and its value.
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
        // SAFETY: the library returns a string that lives for ever.
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
    // SAFETY: the library returns a string that lives for ever.
    unsafe { text_at(sys::kvq_version_string()) }
}

#[doc = crate::generated::docs::header!(kvq_api_version)]
pub fn api_version() -> i32 {
    // SAFETY: takes nothing and returns a number.
    unsafe { sys::kvq_api_version() }
}

/// Refuses a library that is older than the header this crate was made from.
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
