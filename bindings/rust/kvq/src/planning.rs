//! Planning: which option of every choice, so that least is lost within bytes and seconds. May change in a minor version.
use crate::call::{call, defaults, fill, save, Handle, Panics};
use crate::convert::{c_string, int, text_at};
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::shape;
use crate::{Context, Error, PlanFusionInfo, PlanGroupingInfo, PlanInfo, PlanMatrixInfo, Policy, Result};
use kvq_sys as sys;
use std::ffi::CString;
use std::fmt;
use std::ptr;

/// What an option of a choice costs, and a plan all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanCosts {
    pub bytes: f64,
    pub seconds: f64,
    /// In nats of divergence from the uncompressed model, for example.
    pub loss: f64,
}

/// A plan, as [`PlanProblem::solve`] finds it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanSolution {
    /// The number of each choice's option.
    pub chosen: Vec<usize>,
    /// What they cost together.
    pub costs: PlanCosts,
    /// No plan within the limits has a smaller goal.
    pub bound: f64,
}

#[doc = header!(kvq_plan_problem)]
///
/// ```
/// # fn main() -> kvq::Result<()> {
/// use kvq::{Context, ContextOptions, PlanCosts, PlanProblem};
/// let cost = |bytes, loss| PlanCosts { bytes, loss, ..PlanCosts::default() };
/// let matrices = [vec![cost(10.0, 0.0), cost(6.0, 1.0)], vec![cost(8.0, 0.0), cost(4.0, 2.0)]];
/// let context = Context::new(ContextOptions::new())?;
/// let plan = PlanProblem::new().max_bytes(14.0).solve(&context, &matrices)?;
/// assert_eq!(plan.chosen, [1, 0]);
/// assert_eq!(plan.costs.loss, 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PlanProblem {
    raw: sys::kvq_plan_problem,
}

// SAFETY: the pointers in `raw` are NULL; they are set in a copy that goes no further than the call.
unsafe impl Send for PlanProblem {}
// SAFETY: as above.
unsafe impl Sync for PlanProblem {}

impl Default for PlanProblem {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PlanProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let limits = [raw.max_bytes, raw.max_seconds, raw.max_loss];
        out.debug_struct("PlanProblem").field("max bytes, seconds, loss", &limits).finish()
    }
}

impl PlanProblem {
    setters!(kvq_plan_problem);

    /// The least loss, without limits.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        PlanProblem { raw: unsafe { defaults(sys::kvq_plan_problem_init) } }
    }

    #[doc = header!(kvq_plan_solve)]
    pub fn solve<T: AsRef<[PlanCosts]>>(&self, context: &Context, choices: &[T]) -> Result<PlanSolution> {
        let counts: Vec<i32> = choices.iter().map(|choice| int(choice.as_ref().len())).collect();
        let column = |cost: fn(&PlanCosts) -> f64| -> Vec<f64> {
            choices.iter().flat_map(|choice| choice.as_ref().iter().map(cost)).collect()
        };
        let (bytes, seconds, loss) = (column(|it| it.bytes), column(|it| it.seconds), column(|it| it.loss));
        let mut raw = self.raw;
        raw.n_choices = int(choices.len());
        raw.option_counts = counts.as_ptr();
        (raw.bytes, raw.seconds, raw.loss) = (bytes.as_ptr(), seconds.as_ptr(), loss.as_ptr());
        let mut chosen = vec![0; choices.len()];
        // SAFETY: the arrays have as many numbers as the counts say, `chosen` as many as there are choices, and
        // kvq_plan_solve fills this struct.
        let costs: sys::kvq_plan_costs = unsafe {
            fill(context.panics(), |costs, error| {
                sys::kvq_plan_solve(context.raw(), &raw, chosen.as_mut_ptr(), raw.n_choices, costs, error)
            })?
        };
        Ok(PlanSolution {
            chosen: chosen.into_iter().map(crate::convert::count).collect(),
            costs: PlanCosts { bytes: costs.bytes, seconds: costs.seconds, loss: costs.loss },
            bound: costs.bound,
        })
    }
}

#[doc = header!(kvq_plan_rates)]
///
/// The bits of a weight of each matrix, and what is lost.
pub fn plan_rates(weights: &[f64], sensitivities: &[f64], least_bits: f64, total_bits: f64) -> Result<(Vec<f64>, f64)> {
    shape::require("sensitivities", sensitivities.len(), weights.len() as u128, "as many as weights")?;
    let (mut bits, mut loss) = (vec![0.0; weights.len()], 0.0);
    let (w, s, n) = (weights.as_ptr(), sensitivities.as_ptr(), int(weights.len()));
    // SAFETY: the slices have this length.
    call(&Panics::default(), |error| unsafe {
        sys::kvq_plan_rates(n, w, s, least_bits, total_bits, bits.as_mut_ptr(), &mut loss, error)
    })?;
    Ok((bits, loss))
}

/// Matrices that may be multiplied together, and the seconds that this takes with each scheme; infinity: not possible.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanGroup {
    /// Numbers of matrices.
    pub members: Vec<usize>,
    pub seconds: Vec<f64>,
}

#[doc = header!(kvq_plan_fusion)]
pub struct PlanFusion {
    handle: Handle<sys::kvq_plan_fusion>,
    context: Context,
}

fn table<'a>(name: &str, rows: impl Iterator<Item = &'a [f64]>, n_schemes: usize) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for row in rows {
        shape::require(name, row.len(), n_schemes as u128, "[n_schemes] each")?;
        all.extend_from_slice(row);
    }
    Ok(all)
}

impl PlanFusion {
    /// `bytes` and `loss` are of each matrix with each scheme; every matrix must be in a group.
    ///
    #[doc = header!(kvq_plan_fusion_create)]
    pub fn new<T: AsRef<[f64]>>(context: &Context, bytes: &[T], loss: &[T], groups: &[PlanGroup]) -> Result<Self> {
        let n_schemes = bytes.first().map_or(0, |row| row.as_ref().len());
        shape::require("loss", loss.len(), bytes.len() as u128, "as many as bytes")?;
        let bytes_of = table("bytes", bytes.iter().map(AsRef::as_ref), n_schemes)?;
        let loss_of = table("loss", loss.iter().map(AsRef::as_ref), n_schemes)?;
        let seconds = table("seconds", groups.iter().map(|group| group.seconds.as_slice()), n_schemes)?;
        let mut masks = vec![0; groups.len()];
        for (i, (mask, group)) in masks.iter_mut().zip(groups).enumerate() {
            for &member in &group.members {
                if member >= bytes.len() || member >= sys::KVQ_MAX_FUSED as usize {
                    return Err(Error::argument(format!("groups[{i}] has member {member} of {}", bytes.len())));
                }
                *mask |= 1 << member;
            }
        }
        // SAFETY: the function belongs to the struct.
        let mut raw = unsafe { defaults(sys::kvq_plan_fusion_options_init) };
        (raw.n_members, raw.n_schemes, raw.n_groups) = (int(bytes.len()), int(n_schemes), int(groups.len()));
        raw.groups = masks.as_ptr();
        (raw.bytes, raw.loss, raw.seconds) = (bytes_of.as_ptr(), loss_of.as_ptr(), seconds.as_ptr());
        // SAFETY: the arrays have as many numbers as the counts say, and live until the call returns.
        let handle = context
            .create(|result, error| unsafe { sys::kvq_plan_fusion_create(context.raw(), &raw, result, error) })?;
        Ok(PlanFusion { handle, context: context.clone() })
    }

    /// The groupings that no other one beats, those with the smallest loss first: the options of one choice.
    pub fn groupings(&self) -> Result<Vec<PlanGroupingInfo>> {
        let fusion = self.handle.get();
        // SAFETY: kvq_plan_fusion_describe fills this struct.
        let info = PlanFusionInfo::from_raw(&unsafe {
            fill(self.context.panics(), |info, error| sys::kvq_plan_fusion_describe(fusion, info, error))?
        });
        let describe = |index| {
            // SAFETY: kvq_plan_fusion_describe_grouping fills this struct.
            let raw = unsafe {
                fill(self.context.panics(), |info, error| {
                    sys::kvq_plan_fusion_describe_grouping(fusion, int(index), info, error)
                })?
            };
            Ok(PlanGroupingInfo::from_raw(&raw))
        };
        (0..info.n_groupings).map(describe).collect()
    }

    /// The handle in C, which is this object's: not to be destroyed.
    pub fn raw(&self) -> *mut sys::kvq_plan_fusion {
        self.handle.get()
    }
}

impl fmt::Debug for PlanFusion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("PlanFusion").field(&self.raw()).finish()
    }
}

#[doc = header!(kvq_plan_content)]
#[derive(Clone)]
pub struct PlanContent {
    raw: sys::kvq_plan_content,
    matrices: Vec<(String, String)>,
    policy: Option<Policy>,
    note: Option<String>,
}

// SAFETY: the pointers in `raw` are NULL; they are set in a copy that goes no further than the call.
unsafe impl Send for PlanContent {}
// SAFETY: as above.
unsafe impl Sync for PlanContent {}

impl Default for PlanContent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PlanContent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PlanContent").field("matrices", &self.matrices).field("policy", &self.policy).finish()
    }
}

impl PlanContent {
    setters!(kvq_plan_content);

    /// Nothing.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = unsafe { defaults(sys::kvq_plan_content_init) };
        PlanContent { raw, matrices: Vec::new(), policy: None, note: None }
    }

    /// One more matrix, and its scheme.
    #[must_use]
    pub fn matrix(mut self, name: impl Into<String>, scheme: impl Into<String>) -> Self {
        self.matrices.push((name.into(), scheme.into()));
        self
    }

    #[doc = header!(kvq_plan_content, policy)]
    #[must_use]
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.policy = Some(policy.clone());
        self
    }

    #[doc = header!(kvq_plan_content, note)]
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

#[doc = header!(kvq_plan)]
pub struct Plan {
    handle: Handle<sys::kvq_plan>,
    context: Context,
}

impl Plan {
    #[doc = header!(kvq_plan_create)]
    pub fn new(context: &Context, content: &PlanContent) -> Result<Self> {
        let texts = |name: &str, of: fn(&(String, String)) -> &String| -> Result<Vec<CString>> {
            content.matrices.iter().map(|matrix| c_string(of(matrix), name)).collect()
        };
        let (names, schemes) = (texts("names", |it| &it.0)?, texts("schemes", |it| &it.1)?);
        let pointers = |texts: &[CString]| -> Vec<_> { texts.iter().map(|text| text.as_ptr()).collect() };
        let (name_list, scheme_list) = (pointers(&names), pointers(&schemes));
        let note = content.note.as_ref().map(|note| c_string(note, "note")).transpose()?;
        let mut raw = content.raw;
        raw.n_matrices = int(names.len());
        (raw.names, raw.schemes) = (name_list.as_ptr(), scheme_list.as_ptr());
        raw.policy = content.policy.as_ref().map_or(ptr::null(), |policy| policy.raw() as *const _);
        raw.note = note.as_ref().map_or(ptr::null(), |note| note.as_ptr());
        // SAFETY: the content and what it points at live until the call returns.
        let handle =
            context.create(|result, error| unsafe { sys::kvq_plan_create(context.raw(), &raw, result, error) })?;
        Ok(Plan { handle, context: context.clone() })
    }

    #[doc = header!(kvq_plan_load)]
    pub fn load(context: &Context, yaml: &str) -> Result<Self> {
        // SAFETY: the text has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::kvq_plan_load(context.raw(), yaml.as_ptr().cast(), yaml.len(), result, error)
        })?;
        Ok(Plan { handle, context: context.clone() })
    }

    #[doc = header!(kvq_plan_save)]
    pub fn save(&self) -> Result<String> {
        // SAFETY: there are `capacity` bytes at `buffer`.
        let text = save(self.context.panics(), |buffer, capacity, size, error| unsafe {
            sys::kvq_plan_save(self.raw(), buffer.cast(), capacity, size, error)
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    #[doc = header!(kvq_plan_describe)]
    pub fn describe(&self) -> Result<PlanInfo> {
        // SAFETY: kvq_plan_describe fills this struct, whose strings live as long as the handle.
        unsafe {
            let raw = fill(self.context.panics(), |info, error| sys::kvq_plan_describe(self.raw(), info, error))?;
            Ok(PlanInfo::from_raw(&raw))
        }
    }

    /// The matrices that the plan names, in its order.
    pub fn matrices(&self) -> Result<Vec<PlanMatrixInfo>> {
        let describe = |index| {
            // SAFETY: kvq_plan_describe_matrix fills this struct, whose strings live as long as the handle.
            unsafe {
                let raw = fill(self.context.panics(), |info, error| {
                    sys::kvq_plan_describe_matrix(self.raw(), int(index), info, error)
                })?;
                Ok(PlanMatrixInfo::from_raw(&raw))
            }
        };
        (0..self.describe()?.n_matrices).map(describe).collect()
    }

    #[doc = header!(kvq_plan_scheme)]
    pub fn scheme(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        // SAFETY: the name ends with a NUL; the library's string lives as long as the handle.
        let found = unsafe { sys::kvq_plan_scheme(self.raw(), name.as_ptr()) };
        // SAFETY: as above.
        (!found.is_null()).then(|| unsafe { text_at(found) })
    }

    #[doc = header!(kvq_plan_policy)]
    pub fn policy(&self) -> Result<Policy> {
        // SAFETY: the plan lives until the call returns.
        let handle = self.context.create(|result, error| unsafe { sys::kvq_plan_policy(self.raw(), result, error) })?;
        Ok(Policy::of(handle, &self.context))
    }

    /// The handle in C, which is this object's: not to be destroyed.
    pub fn raw(&self) -> *mut sys::kvq_plan {
        self.handle.get()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Plan").field(&self.raw()).finish()
    }
}
