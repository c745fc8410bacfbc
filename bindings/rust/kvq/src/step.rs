//! Steps: appends to all layers of some sequences that are kept together, or taken back.
use crate::call::{call, call_without_panics, defaults};
use crate::convert::int;
use crate::generated::docs::header;
use crate::shape::{pointer_of, require};
use crate::{Cache, Result, Sequence};
use kvq_sys as sys;
use std::fmt;

type Function =
    unsafe extern "C" fn(*mut sys::kvq_cache, *const sys::kvq_step_batch, *mut sys::kvq_error) -> sys::kvq_status;

/// A step of some sequences, begun by [`Cache::step`]: appends to all layers that are kept together, or taken back.
///
/// Dropping it aborts, also where `?` or a panic leaves it. Errors of that are dropped.
#[must_use = "a step that is dropped takes its tokens back"]
pub struct Step<'a> {
    cache: Cache,
    sequences: Vec<&'a mut Sequence>,
    active: bool,
}

impl<'a> Step<'a> {
    pub(crate) fn begin(cache: &Cache, sequences: Vec<&'a mut Sequence>, token_counts: &[i32]) -> Result<Self> {
        let mut step = Step { cache: cache.clone(), sequences, active: false };
        step.run(sys::kvq_step_begin, Some(token_counts), None, true, false)?; // a hook's panic drops what has begun
        Ok(step)
    }

    /// Sequences of the step, in the order given.
    pub fn sequences(&mut self) -> &mut [&'a mut Sequence] {
        &mut self.sequences
    }

    /// Keep all tokens, of which all layers must have received as many; see [`commit_first`](Self::commit_first).
    pub fn commit(mut self) -> Result<()> {
        self.run(sys::kvq_step_commit, None, None, false, false)
    }

    #[doc = header!(kvq_step_commit)]
    ///
    /// If this is refused, the step is aborted.
    pub fn commit_first(mut self, token_counts: &[i32]) -> Result<()> {
        self.run(sys::kvq_step_commit, Some(token_counts), None, false, false)
    }

    /// Keep the tokens `kept[i]` of sequence i, counted from 0 in the order of appending and ascending, such as a path
    /// of a draft tree; see [`commit_first`](Self::commit_first).
    pub fn commit_kept(mut self, kept: &[&[i32]]) -> Result<()> {
        let counts: Vec<i32> = kept.iter().map(|slots| int(slots.len())).collect();
        let mut slots = kept.concat();
        slots.push(0); // an address also if none is kept
        self.run(sys::kvq_step_commit, Some(&counts), Some(&slots), false, false)
    }

    #[doc = header!(kvq_step_abort)]
    pub fn abort(mut self) -> Result<()> {
        self.run(sys::kvq_step_abort, None, None, false, false)
    }

    /// Calls a function, after which the step is active or not.
    fn run(
        &mut self,
        function: Function,
        token_counts: Option<&[i32]>,
        kept_slots: Option<&[i32]>,
        active: bool,
        in_drop: bool,
    ) -> Result<()> {
        if let Some(given) = token_counts {
            require("token_counts", given.len(), self.sequences.len() as u128, "one for each sequence")?;
        }
        let Step { cache, sequences, active: is_active } = self;
        // SAFETY: the function belongs to the struct.
        let mut batch = unsafe { defaults(sys::kvq_step_batch_init) };
        batch.token_counts = pointer_of(token_counts);
        batch.kept_slots = pointer_of(kept_slots);
        cache.with_own(sequences.iter().map(|sequence| &**sequence), |pointers| {
            (batch.n_sequences, batch.sequences) = (int(pointers.len()), pointers.as_ptr());
            let run = |error: *mut sys::kvq_error| {
                // SAFETY: the slices live until the call returns; the sequences are borrowed exclusively.
                let status = unsafe { function(cache.raw(), &batch, error) };
                if status == sys::KVQ_OK {
                    *is_active = active;
                }
                status
            };
            if in_drop {
                return call_without_panics(run); // unwinding twice would end the process
            }
            call(cache.context().panics(), run)
        })
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.active {
            let _ = self.run(sys::kvq_step_abort, None, None, false, true);
        }
    }
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Step").field("sequences", &self.sequences).finish()
    }
}
