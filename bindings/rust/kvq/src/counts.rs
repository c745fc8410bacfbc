//! Rows per sequence of a batch, and their positions.
use crate::shape;
use crate::Result;

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts<'a> {
    pub(crate) counts: Option<&'a [i32]>,
    pub(crate) positions: Option<&'a [i32]>,
}

impl Counts<'_> {
    /// Counts the rows of all sequences; the names are those of the counts, the positions, and the shape of positions.
    pub(crate) fn checked(&self, [counts, positions, shape]: [&str; 3], sequences: usize) -> Result<usize> {
        let rows = shape::total(counts, self.counts, sequences)?;
        if let Some(given) = self.positions {
            shape::require(positions, given.len(), rows as u128, shape)?;
        }
        Ok(rows)
    }
}

/// Setters of `self.counts`, named as in the struct `self.raw`, and `set_counts`, which checks and fills it.
macro_rules! counts_setters {
    ($batch:ident, $counts:ident, $positions:ident, $shape:literal) => {
        #[doc = $crate::generated::docs::header!($batch, $counts)]
        #[must_use]
        pub fn $counts(mut self, $counts: &'a [i32]) -> Self {
            self.counts.counts = Some($counts);
            self
        }

        #[doc = $crate::generated::docs::header!($batch, $positions)]
        #[must_use]
        pub fn $positions(mut self, $positions: &'a [i32]) -> Self {
            self.counts.positions = Some($positions);
            self
        }

        /// Rows of all sequences together.
        fn set_counts(&mut self, sequences: usize) -> $crate::Result<usize> {
            let rows = self.counts.checked([stringify!($counts), stringify!($positions), $shape], sequences)?;
            self.raw.$counts = $crate::shape::pointer_of(self.counts.counts);
            self.raw.$positions = $crate::shape::pointer_of(self.counts.positions);
            Ok(rows)
        }
    };
}
pub(crate) use counts_setters;
