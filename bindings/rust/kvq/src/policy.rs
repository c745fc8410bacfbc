//! Policies.
use crate::call::Handle;
use crate::convert::{c_string, int};
use crate::generated::docs::header;
use crate::object::object;
use crate::{Context, Result};
use kvq_sys as sys;
use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

object!(Policy, kvq_policy);

impl Policy {
    #[doc = header!(kvq_policy_load)]
    pub fn load(context: &Context, yaml: &str) -> Result<Self> {
        // SAFETY: the text has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_policy_load(context.raw(), yaml.as_ptr().cast(), yaml.len(), result, error)
        })?;
        Ok(Policy::of(handle, context))
    }

    #[doc = header!(kvq_policy_with_eviction)]
    pub fn with_eviction(&self, method: &str, budget: usize) -> Result<Self> {
        let method = c_string(method, "method")?;
        // SAFETY: the name ends with a NUL and lives until the call returns.
        let handle = self.context.create(|result, error| unsafe {
            sys::kvq_policy_with_eviction(self.context.raw(), self.raw(), method.as_ptr(), int(budget), result, error)
        })?;
        Ok(Policy::of(handle, &self.context))
    }

    #[doc = header!(kvq_policy_with_layer)]
    pub fn with_layer(
        &self,
        first_layer: usize,
        last_layer: usize,
        keys: Option<&str>,
        values: Option<&str>,
    ) -> Result<Self> {
        let keys = keys.map(|name| c_string(name, "keys")).transpose()?;
        let values = values.map(|name| c_string(name, "values")).transpose()?;
        let name_at = |name: &Option<CString>| name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: the names are NULL or end with a NUL, and live until the call returns.
        let handle = self.context.create(|result, error| unsafe {
            let (keys, values) = (name_at(&keys), name_at(&values));
            let (first, last) = (int(first_layer), int(last_layer));
            sys::kvq_policy_with_layer(self.context.raw(), self.raw(), first, last, keys, values, result, error)
        })?;
        Ok(Policy::of(handle, &self.context))
    }
}

/// The handle of a policy; NULL stands for none.
pub(crate) fn pointer_to(policy: Option<&Policy>) -> *const sys::kvq_policy {
    policy.map_or(ptr::null(), |policy| policy.raw())
}
