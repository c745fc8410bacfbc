//! Policies.
use crate::call::{fill, Handle};
use crate::convert::{c_string, int};
use crate::generated::docs::header;
use crate::{Context, PolicyInfo, Result};
use kvq_sys as sys;
use std::fmt;
use std::sync::Arc;

#[doc = header!(kvq_policy)]
///
/// Clones are the same policy.
#[derive(Clone)]
pub struct Policy {
    handle: Arc<Handle<sys::kvq_policy>>,
    context: Context,
}

impl Policy {
    #[doc = header!(kvq_policy_load)]
    pub fn load(context: &Context, yaml: &str) -> Result<Self> {
        // SAFETY: the text has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_policy_load(context.raw(), yaml.as_ptr().cast(), yaml.len(), result, error)
        })?;
        Ok(Policy { handle: Arc::new(handle), context: context.clone() })
    }

    #[doc = header!(kvq_policy_with_eviction)]
    pub fn with_eviction(&self, method: &str, budget: usize) -> Result<Self> {
        let method = c_string(method, "method")?;
        // SAFETY: the name ends with a NUL and lives until the call returns.
        let handle = self.context.create(|result, error| unsafe {
            sys::kvq_policy_with_eviction(self.context.raw(), self.raw(), method.as_ptr(), int(budget), result, error)
        })?;
        Ok(Policy { handle: Arc::new(handle), context: self.context.clone() })
    }

    #[doc = header!(kvq_policy_describe)]
    pub fn describe(&self) -> Result<PolicyInfo> {
        // SAFETY: kvq_policy_describe fills this struct.
        let raw =
            unsafe { fill(self.context.panics(), |info, error| sys::kvq_policy_describe(self.raw(), info, error))? };
        Ok(PolicyInfo::from_raw(&raw))
    }

    /// The handle in C, which is this object's: not to be destroyed.
    pub fn raw(&self) -> *mut sys::kvq_policy {
        self.handle.get()
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Policy").field(&self.raw()).finish()
    }
}
