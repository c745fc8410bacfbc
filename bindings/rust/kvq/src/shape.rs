//! Checks lengths of slices before the library reads or writes them.
use crate::{Element, Error, Result};
use std::os::raw::c_void;
use std::ptr;

/// A slice of numbers without its type, which its holder borrows.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) pointer: *const c_void,
    pub(crate) length: usize,
}

// SAFETY: as for the slice, whose numbers are Send and Sync.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl Extent {
    pub(crate) fn of<T: Element>(slice: &[T]) -> Self {
        Extent { pointer: slice.as_ptr().cast(), length: slice.len() }
    }

    pub(crate) fn of_mut<T: Element>(slice: &mut [T]) -> Self {
        Extent { pointer: slice.as_mut_ptr() as *const c_void, length: slice.len() }
    }
}

/// Returns the address of a layer's values after checking their number by `require`; NULL where keys contain them, for
/// which the slice must be empty.
pub(crate) fn values_of(
    v: Extent,
    are_key_prefix: bool,
    require: impl FnOnce(usize) -> Result<()>,
) -> Result<*const c_void> {
    if !are_key_prefix {
        return require(v.length).map(|()| v.pointer);
    }
    if v.length == 0 {
        return Ok(ptr::null()); // the address of an empty slice is another
    }
    let given = v.length;
    Err(Error::argument(format!("v has {given} elements, must be empty: the layer's values are a prefix of its keys")))
}

pub(crate) fn require(name: &str, given: usize, expected: u128, shape: &str) -> Result<()> {
    if given as u128 == expected {
        return Ok(());
    }
    Err(Error::argument(format!("{name} has {given} elements, expected {expected}: {shape}")))
}

/// Refuses a slice whose length differs from that of dense rows `[count, heads, channels]`, or that is too short for
/// rows with strides from a row and a head to the next, in elements.
pub(crate) fn require_rows(name: &str, given: usize, shape: [usize; 3], strides: [i64; 2]) -> Result<()> {
    let [count, heads, channels] = shape.map(|size| size as u128);
    if strides == [0, 0] {
        let expected = count * heads * channels;
        return if given as u128 == expected { Ok(()) } else { require(name, given, expected, &format!("{shape:?}")) };
    }
    // As in the library, 0 means dense.
    let or_dense = |stride: i64, dense: u128| if stride == 0 { dense } else { stride as u128 };
    let (token, head) = (or_dense(strides[0], heads * channels), or_dense(strides[1], channels));
    let needed = (count.max(1) - 1) * token + (heads.max(1) - 1) * head + channels;
    if given as u128 >= needed {
        return Ok(());
    }
    Err(Error::argument(format!("{name} has {given} elements, but {shape:?} by its strides takes {needed}")))
}

/// Returns the rows of a dense slice.
pub(crate) fn rows_of(name: &str, given: usize, row: usize, shape: &str) -> Result<usize> {
    if given > 0 && row > 0 && given % row == 0 {
        return Ok(given / row);
    }
    Err(Error::argument(format!("{name} has {given} elements, expected a multiple of {row}: {shape}")))
}

/// Adds up counts of at least 1 each; without counts, each is 1.
pub(crate) fn total(name: &str, counts: Option<&[i32]>, sequences: usize) -> Result<usize> {
    if sequences == 0 {
        return Err(Error::argument("sequences is empty"));
    }
    let counts = match counts {
        Some(counts) => counts,
        None => return Ok(sequences),
    };
    require(name, counts.len(), sequences as u128, "[sequences]")?;
    if let Some(at) = counts.iter().position(|&count| count < 1) {
        return Err(Error::argument(format!("{name}[{at}] is {}, must be at least 1", counts[at])));
    }
    sum(name, counts.iter().map(|&count| count as usize))
}

/// Adds up numbers of elements; refuses a sum that a machine of 32 bits cannot count.
fn sum(name: &str, numbers: impl IntoIterator<Item = usize>) -> Result<usize> {
    numbers
        .into_iter()
        .try_fold(0usize, usize::checked_add)
        .ok_or_else(|| Error::argument(format!("{name} adds up to more than {}", usize::MAX)))
}

/// Multiplies numbers of elements, with the same limit.
pub(crate) fn product(name: &str, rows: usize, columns: usize) -> Result<usize> {
    rows.checked_mul(columns).ok_or_else(|| {
        Error::argument(format!("{name} has {rows} elements; {columns} numbers each are more than {}", usize::MAX))
    })
}

pub(crate) fn pointer_of<T>(slice: Option<&[T]>) -> *const T {
    slice.map_or(ptr::null(), <[T]>::as_ptr)
}

/// Runs `function` on a list of pointers, which needs no allocation for usual batches.
pub(crate) fn with_pointers<T, P: Copy, R>(
    items: impl ExactSizeIterator<Item = T>,
    none: P,
    pointer: impl Fn(T) -> P,
    function: impl FnOnce(&[P]) -> R,
) -> R {
    const FEW: usize = 16;
    let length = items.len();
    if length <= FEW {
        let mut few = [none; FEW];
        few.iter_mut().zip(items).for_each(|(place, item)| *place = pointer(item));
        return function(&few[..length]);
    }
    function(&items.map(pointer).collect::<Vec<P>>())
}

#[cfg(test)]
mod tests {
    use super::{product, sum};

    #[test]
    fn sums_and_products_near_the_largest_number_do_not_wrap() {
        const MOST: usize = usize::MAX;
        assert_eq!(sum("counts", []).unwrap(), 0);
        assert_eq!(sum("counts", [MOST - 3, 1, 2]).unwrap(), MOST);
        for wrapping in [[MOST, 1], [1, MOST], [MOST / 2 + 1, MOST / 2 + 1]] {
            assert!(sum("counts", wrapping).unwrap_err().message().contains("counts adds up to more than"));
        }
        assert_eq!(product("rows", MOST / 2, 2).unwrap(), MOST - 1);
        assert_eq!(product("rows", 0, MOST).unwrap(), 0);
        assert!(product("rows", MOST / 2 + 1, 2).unwrap_err().message().contains("rows has"));
    }
}
