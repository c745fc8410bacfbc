//! Device memory: a CPU context takes addresses of the program's memory; a GPU context, if there is a GPU, refuses host
//! memory.
mod common;
use common::*;
use kvq::{Append, Attend, Cache, CacheOptions, Context, ContextOptions, Device, DeviceAppend, DeviceAttend};
use kvq::{DeviceExtend, Dtype, Extend, Matrix, QuantizeOptions, Rope, Sequence, Status};

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

    let [mut d, mut e] = [a.fork().unwrap(), a.fork().unwrap()];
    let batch = Extend::new(&k, &v, &q, &mut expected).positions(&[9]).sinks(&sinks);
    cache.extend(0, &mut [&mut d], batch).unwrap();
    let (k, v, q) = (k.as_ptr().cast(), v.as_ptr().cast(), q.as_ptr().cast());
    let batch = DeviceExtend::new(k, v, Dtype::F32, q, Dtype::F32, output.as_mut_ptr().cast(), Dtype::F32)
        .positions(&[9])
        .sinks(sinks.as_ptr());
    // SAFETY: the vectors have these sizes.
    unsafe { cache.extend_device(0, &mut [&mut e], batch) }.unwrap();
    assert_eq!(output, expected);
    assert_eq!(d.save().unwrap(), e.save().unwrap());
}

#[test]
fn on_a_gpu_host_memory_is_refused() {
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
    let batch = Extend::new(&k[..128], &v[..128], &q, &mut output);
    assert_fails(cache.extend(0, &mut [&mut sequence], batch), Status::Argument, &["extend_device"]);
    let attended = cache.attend(0, &[&sequence], Attend::new(&q, &mut output));
    assert_fails(attended, Status::Argument, &["attend_device"]);
    let w = numbers(64 * 64, 1);
    let matrix = Matrix::quantize(&context, QuantizeOptions::new(), &w, 64, 64).unwrap();
    assert_fails(matrix.linear(&q[..64], &mut output[..64]), Status::Argument, &["linear_device"]);
}
