//! On a GPU, where there is one: the smallest attention, and that host memory is refused.
mod common;
use common::*;
use kvq::{Append, Attend, Cache, CacheOptions, Context, ContextOptions, Device, DeviceAppend, DeviceAttend, Dtype};
use kvq::{Matrix, QuantizeOptions, Rope, Sequence, Status};
use std::ffi::c_void;
use std::os::raw::{c_char, c_int};

/// A context on the first GPU, or the reason why there is none.
fn gpu() -> Option<Context> {
    match kvq::device_describe(Device::Cuda, 0) {
        Ok(info) => {
            assert!(info.n_devices > 0 && info.memory_bytes > 0);
            Some(Context::new(ContextOptions::new().device(Device::Cuda)).unwrap())
        }
        Err(error) => {
            assert_eq!(error.status(), Status::Unsupported);
            println!("skipped: {}", error.message());
            None
        }
    }
}

#[test]
fn the_reason_why_there_is_no_gpu_names_what_is_missing() {
    // SAFETY: the file does not exist.
    let described = unsafe { kvq::device_describe_by(Device::Cuda, 0, "/nowhere/libkvq_cuda.so") };
    assert_fails(described, Status::Unsupported, &["/nowhere/libkvq_cuda.so"]);
    // SAFETY: the file does not exist.
    let options = unsafe { ContextOptions::new().device(Device::Cuda).plugin("/nowhere/libkvq_cuda.so") };
    assert_fails(Context::new(options), Status::Unsupported, &["/nowhere/libkvq_cuda.so"]);
    assert_fails(kvq::device_describe(Device::Cpu, 0), Status::Argument, &["device"]);
}

#[test]
fn streams_belong_to_gpus() {
    // SAFETY: a CPU's context has no stream, and refuses one.
    let set = unsafe { context().set_stream(std::ptr::null_mut()) };
    assert_fails(set, Status::Unsupported, &[]);
}

#[test]
fn on_a_cpu_the_contexts_memory_is_the_programs() {
    let cache = small("fp16");
    let mut sequences = [filled(&cache, 5, 1), filled(&cache, 5, 1), filled(&cache, 5, 1)];
    let (k, v, q) = (numbers(32, 3), numbers(32, 4), numbers(64, 5));
    let [a, b, c] = &mut sequences;
    a.append_at(0, &k, &v, &[7]).unwrap();
    // SAFETY: the vectors have these sizes.
    unsafe {
        let (k, v) = (k.as_ptr().cast(), v.as_ptr().cast());
        b.append_device(0, 1, k, v, Dtype::F32, Some(&[7])).unwrap();
        let batch = DeviceAppend::new(k, v, Dtype::F32).token_counts(&[1]).positions(&[7]);
        cache.append_device(0, &mut [c], batch).unwrap();
        assert_fails(c.append_device(0, 1, k, v, Dtype::F32, Some(&[])), Status::Argument, &["positions has 0"]);
    }
    assert_eq!(a.save().unwrap(), b.save().unwrap());
    assert_eq!(a.save().unwrap(), c.save().unwrap());

    let (mut expected, mut output, mut lse) = (vec![0.0f32; 64], vec![0.0f32; 64], [0.0f32; 4]);
    let sinks = [0.5f32; 4];
    cache.attend(0, &[a], Attend::new(&q, &mut expected).sinks(&sinks).query_positions(&[6])).unwrap();
    let batch = DeviceAttend::new(q.as_ptr().cast(), Dtype::F32, output.as_mut_ptr().cast(), Dtype::F32)
        .query_counts(&[1])
        .query_positions(&[6])
        .sinks(sinks.as_ptr())
        .lse(lse.as_mut_ptr());
    // SAFETY: the vectors have these sizes.
    unsafe { cache.attend_device(0, &[a], batch) }.unwrap();
    assert_eq!(output, expected);
    assert!(lse.iter().all(|x| *x > 0.5));
}

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Device memory by the driver, in the context that the CUDA runtime has made.
struct DeviceMemory {
    driver: *mut c_void,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    fn of(numbers: &[f32]) -> Self {
        // SAFETY: the driver is there, since a context on a GPU is; its functions have these types.
        unsafe {
            let driver = dlopen(b"libcuda.so.1\0".as_ptr().cast(), 2);
            assert!(!driver.is_null());
            let mut memory = DeviceMemory { driver, address: 0, bytes: numbers.len() * 4 };
            let get: extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                std::mem::transmute(memory.function(b"cuDevicePrimaryCtxRetain\0"));
            let set: extern "C" fn(*mut c_void) -> c_int = std::mem::transmute(memory.function(b"cuCtxSetCurrent\0"));
            let allocate: extern "C" fn(*mut u64, usize) -> c_int =
                std::mem::transmute(memory.function(b"cuMemAlloc_v2\0"));
            let copy: extern "C" fn(u64, *const c_void, usize) -> c_int =
                std::mem::transmute(memory.function(b"cuMemcpyHtoD_v2\0"));
            let mut primary = std::ptr::null_mut();
            assert_eq!((get(&mut primary, 0), set(primary)), (0, 0));
            assert_eq!(allocate(&mut memory.address, memory.bytes), 0);
            assert_eq!(copy(memory.address, numbers.as_ptr().cast(), memory.bytes), 0);
            memory
        }
    }

    fn function(&self, name: &[u8]) -> *mut c_void {
        // SAFETY: the name ends with a NUL.
        let function = unsafe { dlsym(self.driver, name.as_ptr().cast()) };
        assert!(!function.is_null());
        function
    }

    fn pointer(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    /// Waits for the device, as copies on the default stream do.
    fn read(&self) -> Vec<f32> {
        let mut numbers = vec![0.0f32; self.bytes / 4];
        // SAFETY: the function has this type, and the vector as many bytes.
        unsafe {
            let copy: extern "C" fn(*mut c_void, u64, usize) -> c_int =
                std::mem::transmute(self.function(b"cuMemcpyDtoH_v2\0"));
            assert_eq!(copy(numbers.as_mut_ptr().cast(), self.address, self.bytes), 0);
        }
        numbers
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the function has this type, and the address comes from the driver.
        unsafe {
            let free: extern "C" fn(u64) -> c_int = std::mem::transmute(self.function(b"cuMemFree_v2\0"));
            free(self.address);
        }
    }
}

#[test]
fn a_gpu_attends_to_device_memory_and_refuses_the_hosts() {
    let context = match gpu() {
        Some(context) => context,
        None => return,
    };
    let cache = Cache::new(&context, CacheOptions::new(1, 4, 2, 64).rope(Rope::None), None).unwrap();
    let mut sequence = Sequence::new(&cache).unwrap();
    let (k, v, q) = (numbers(50 * 128, 1), numbers(50 * 128, 2), numbers(256, 3));
    assert_fails(sequence.append(0, &k, &v), Status::Argument, &["append_device"]);
    let batch = Append::new(&k, &v);
    assert_fails(cache.append(0, &mut [&mut sequence], batch), Status::Argument, &["append_device"]);
    let mut output = vec![0.0f32; 256];
    let attended = cache.attend(0, &[&sequence], Attend::new(&q, &mut output));
    assert_fails(attended, Status::Argument, &["attend_device"]);
    let w = numbers(64 * 64, 1);
    let matrix = Matrix::quantize(&context, QuantizeOptions::new(), &w, 64, 64).unwrap();
    assert_fails(matrix.linear(&q[..64], &mut output[..64]), Status::Argument, &["linear_device"]);

    let (k, v, queries) = (DeviceMemory::of(&k), DeviceMemory::of(&v), DeviceMemory::of(&q));
    let result = DeviceMemory::of(&output);
    // SAFETY: the device's memory has these sizes and lives on.
    unsafe {
        sequence.append_device(0, 50, k.pointer(), v.pointer(), Dtype::F32, None).unwrap();
        let batch = DeviceAttend::new(queries.pointer(), Dtype::F32, result.pointer(), Dtype::F32);
        cache.attend_device(0, &[&sequence], batch).unwrap();
    }
    let host = Cache::new(&common::context(), CacheOptions::new(1, 4, 2, 64).rope(Rope::None), None).unwrap();
    let (mut on_host, mut expected) = (Sequence::new(&host).unwrap(), vec![0.0f32; 256]);
    on_host.append(0, &numbers(50 * 128, 1), &numbers(50 * 128, 2)).unwrap();
    host.attend(0, &[&on_host], Attend::new(&q, &mut expected)).unwrap();
    assert_close(&result.read(), &wide(&expected), 2e-3); // queries and probabilities are rounded to FP16
}
