//! Linear layers with weights in few bits.
use crate::call::{call, defaults, fill, save, Handle, Panics};
use crate::convert::{c_string, int, long, text_at};
use crate::error::require_version;
use crate::generated::docs::header;
use crate::generated::options::setters;
use crate::hooks::{Progress, ProgressHook};
use crate::object::{debug, default_is_new, optional, Raw};
use crate::shape::{self, pointer_of, rows_of, with_pointers};
use crate::{Context, Dtype, Element, Error, MatrixInfo, Result};
use kvq_sys as sys;
use std::ops::{ControlFlow, Range};
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;

#[doc = header!(qp_quantize_options)]
pub struct QuantizeOptions<'a> {
    raw: Raw<sys::qp_quantize_options>,
    scheme: Option<String>,
    hessian: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    progress: Option<&'a mut ProgressHook<'a>>,
}

default_is_new!(QuantizeOptions<'_>);

impl<'a> QuantizeOptions<'a> {
    setters!(qp_quantize_options);

    /// Returns the library's defaults.
    pub fn new() -> Self {
        // SAFETY: the function belongs to the struct.
        let raw = Raw(unsafe { defaults(sys::qp_quantize_options_init) });
        QuantizeOptions { raw, scheme: None, hessian: None, bias: None, progress: None }
    }

    optional!(qp_quantize_options, scheme: impl Into<String> = scheme.into(), hessian: &'a [f32] = hessian,
        bias: &'a [f32] = bias);

    /// Receives the progress of the call, 0 to 1; `Break` ends it with [`Status::Cancelled`](crate::Status::Cancelled).
    #[must_use]
    pub fn progress(mut self, progress: &'a mut (dyn FnMut(f64) -> ControlFlow<()> + Send + 'a)) -> Self {
        self.progress = Some(progress);
        self
    }
}

#[doc = header!(qp_matrix)]
///
/// Clones are the same matrix.
#[derive(Clone)]
pub struct Matrix(Arc<Inner>);

struct Inner {
    handle: Handle<sys::qp_matrix>,
    context: Context,
    info: MatrixInfo,
}

impl Matrix {
    #[doc = header!(qp_quantize)]
    pub fn quantize<T: Element>(
        context: &Context,
        options: QuantizeOptions<'_>,
        w: &[T],
        rows: usize,
        columns: usize,
    ) -> Result<Self> {
        let QuantizeOptions { mut raw, scheme, hessian, bias, progress } = options;
        shape::require("w", w.len(), rows as u128 * columns as u128, "[rows, columns]")?;
        if let Some(hessian) = hessian {
            shape::require("hessian", hessian.len(), columns as u128 * columns as u128, "[columns, columns]")?;
        }
        if let Some(bias) = bias {
            shape::require("bias", bias.len(), rows as u128, "[rows]")?;
        }
        let scheme = scheme.map(|scheme| c_string(&scheme, "scheme")).transpose()?;
        if let Some(scheme) = &scheme {
            raw.scheme = scheme.as_ptr();
        }
        let mut progress = Progress::new(progress);
        raw.dtype = T::DTYPE.code();
        raw.hessian = pointer_of(hessian);
        raw.bias = pointer_of(bias);
        raw.progress = progress.function();
        raw.progress_user = progress.user();
        // SAFETY: slices have these lengths and live, as the hook does, until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::qp_quantize(context.raw(), &*raw, w.as_ptr().cast(), long(rows), long(columns), result, error)
        });
        progress.raise();
        Matrix::of(handle?, context)
    }

    fn of(handle: Handle<sys::qp_matrix>, context: &Context) -> Result<Self> {
        // SAFETY: qp_matrix_describe fills this struct, whose string is never freed.
        let info = unsafe {
            let raw = fill(context.panics(), |info, error| sys::qp_matrix_describe(handle.get(), info, error))?;
            MatrixInfo::from_raw(&raw)
        };
        Ok(Matrix(Arc::new(Inner { handle, context: context.clone(), info })))
    }

    #[doc = header!(qp_matrix_load)]
    pub fn load(context: &Context, bytes: &[u8], name: &str) -> Result<Self> {
        let name = c_string(name, "name")?;
        // SAFETY: the slice has this length; it and the name live until the call returns.
        let handle = context.create(|result, error| unsafe {
            let name = name.as_ptr();
            sys::qp_matrix_load(context.raw(), bytes.as_ptr().cast(), bytes.len(), name, result, error)
        })?;
        Matrix::of(handle, context)
    }

    #[doc = header!(qp_matrix_save)]
    pub fn save(matrices: &[(&str, &Matrix)]) -> Result<Vec<u8>> {
        let first = matrices.first().ok_or_else(|| Error::argument("matrices is empty"))?;
        let names = matrices.iter().map(|one| c_string(one.0, "names")).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let handles: Vec<_> = matrices.iter().map(|one| one.1.raw() as *const _).collect();
        let n = int(matrices.len());
        // SAFETY: both lists have `n` entries, and there are `capacity` bytes at `buffer`.
        save(first.1 .0.context.panics(), |buffer, capacity, size, error| unsafe {
            sys::qp_matrix_save(handles.as_ptr(), names.as_ptr(), n, buffer.cast(), capacity, size, error)
        })
    }

    #[doc = header!(qp_matrix_predict_bytes)]
    ///
    /// Returns `bytes` and `allocated`.
    pub fn predict_bytes(scheme: &str, rows: usize, columns: usize, has_bias: bool) -> Result<(u64, u64)> {
        require_version()?;
        let scheme = c_string(scheme, "scheme")?;
        let (mut bytes, mut allocated) = (0, 0);
        let (rows, columns) = (long(rows), long(columns));
        // SAFETY: the name ends with a NUL, and both numbers can be written to.
        call(&Panics::default(), |error| unsafe {
            let scheme = scheme.as_ptr();
            sys::qp_matrix_predict_bytes(scheme, rows, columns, has_bias.into(), &mut bytes, &mut allocated, error)
        })?;
        Ok((bytes, allocated))
    }

    #[doc = header!(qp_matrix_describe)]
    pub fn describe(&self) -> &MatrixInfo {
        &self.0.info
    }

    #[doc = header!(qp_matrix_dequantize)]
    pub fn dequantize(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let info = self.describe();
        if rows.start >= rows.end || rows.end > info.rows {
            return Err(Error::argument(format!("rows is {rows:?}, must lie in 0..{} and not be empty", info.rows)));
        }
        let mut w = vec![0.0f32; shape::product("rows", rows.len(), info.columns)?];
        // SAFETY: there is room for these rows.
        self.0.context.call(|error| unsafe {
            sys::qp_matrix_dequantize(self.raw(), long(rows.start), long(rows.len()), w.as_mut_ptr(), error)
        })?;
        Ok(w)
    }

    #[doc = header!(qp_linear)]
    ///
    /// The batch is the number of rows in `x`.
    pub fn linear<T: Element>(&self, x: &[T], y: &mut [T]) -> Result<()> {
        self.0.context.require_host("linear")?;
        let info = self.describe();
        let batch = rows_of("x", x.len(), info.columns, "[batch, columns]")?;
        shape::require("y", y.len(), batch as u128 * info.rows as u128, "[batch, rows]")?;
        // SAFETY: the slices live until the call returns, and their lengths have been checked.
        unsafe { self.linear_device(x.as_ptr().cast(), batch, y.as_mut_ptr().cast(), T::DTYPE) }
    }

    /// Like [`linear`](Self::linear), in the context's memory.
    ///
    /// # Safety
    /// `x` and `y` must have these sizes and, for a CUDA context, stay alive until the stream is done with them.
    pub unsafe fn linear_device(&self, x: *const c_void, batch: usize, y: *mut c_void, dtype: Dtype) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.0.context.call(|error| unsafe { sys::qp_linear(self.raw(), x, int(batch), y, dtype.code(), error) })
    }

    #[doc = header!(qp_linear_shared)]
    ///
    /// The batch is the number of rows in `x`.
    pub fn linear_shared<T: Element>(matrices: &[&Matrix], x: &[T], y: &mut [&mut [T]]) -> Result<()> {
        let first = matrices.first().ok_or_else(|| Error::argument("matrices is empty"))?;
        first.0.context.require_host("linear_shared")?;
        let batch = rows_of("x", x.len(), first.describe().columns, "[batch, columns]")?;
        shape::require("y", y.len(), matrices.len() as u128, "[matrices]")?;
        for (at, (matrix, y)) in matrices.iter().zip(y.iter()).enumerate() {
            let expected = batch as u128 * matrix.describe().rows as u128;
            if y.len() as u128 != expected {
                return shape::require(&format!("y[{at}]"), y.len(), expected, "[batch, rows]");
            }
        }
        let x = x.as_ptr().cast();
        with_pointers(
            y.iter_mut(),
            ptr::null_mut(),
            |y| y.as_mut_ptr().cast(),
            |y| {
                // SAFETY: the slices live until the call returns, and their lengths have been checked.
                unsafe { Matrix::linear_shared_device(matrices, x, batch, y, T::DTYPE) }
            },
        )
    }

    /// Like [`linear_shared`](Self::linear_shared), in the context's memory.
    ///
    /// # Safety
    /// `x` and the tensors in `y` must have these sizes and, for a CUDA context, stay alive until the stream is done
    /// with them.
    pub unsafe fn linear_shared_device(
        matrices: &[&Matrix],
        x: *const c_void,
        batch: usize,
        y: &[*mut c_void],
        dtype: Dtype,
    ) -> Result<()> {
        let first = matrices.first().ok_or_else(|| Error::argument("matrices is empty"))?;
        shape::require("y", y.len(), matrices.len() as u128, "[matrices]")?;
        with_pointers(
            matrices.iter(),
            ptr::null(),
            |matrix| matrix.raw() as *const _,
            |handles| {
                let (handles, n) = (handles.as_ptr(), int(handles.len()));
                // SAFETY: guaranteed by the caller; both lists have `n` entries.
                first.0.context.call(|error| unsafe {
                    sys::qp_linear_shared(handles, n, x, int(batch), y.as_ptr(), dtype.code(), error)
                })
            },
        )
    }

    /// Returns the C handle, which this object owns and destroys.
    pub fn raw(&self) -> *mut sys::qp_matrix {
        self.0.handle.get()
    }
}

debug!(Matrix, it => it.0.info);

#[doc = header!(qp_scheme_name)]
///
/// Returns all of them.
pub fn schemes() -> Vec<String> {
    // SAFETY: names are never freed.
    unsafe { (0..sys::qp_scheme_count()).map(|index| text_at(sys::qp_scheme_name(index))).collect() }
}

#[doc = header!(qp_scheme_bits)]
pub fn scheme_bits(name: &str) -> f64 {
    // SAFETY: the name ends with a NUL and lives until the call returns.
    c_string(name, "name").map_or(0.0, |name| unsafe { sys::qp_scheme_bits(name.as_ptr()) })
}
