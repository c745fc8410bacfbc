using System;
using System.Runtime.InteropServices;

namespace Kvq.Tests
{
    static class CudaTests
    {
        public static void Device_methods_are_refused_on_the_CPU()
        {
            using (var model = new Model())
            {
                Test.Throws<InvalidOperationException>("AppendDevice takes device memory", () =>
                    model.Sequence.AppendDevice(0, 1, IntPtr.Zero, IntPtr.Zero, Dtype.F32));
                Test.Throws<InvalidOperationException>("AppendDevice takes device memory", () =>
                    model.Cache.AppendDevice(0, new DeviceAppendBatch { Sequences = new[] { model.Sequence } }));
                Test.Throws<InvalidOperationException>("AttendDevice takes device memory", () =>
                    model.Cache.AttendDevice(0, new DeviceAttendBatch { Sequences = new[] { model.Sequence } }));
                Test.Throws<InvalidOperationException>("ExtendDevice takes device memory", () =>
                    model.Cache.ExtendDevice(0, new DeviceExtendBatch { Sequences = new[] { model.Sequence } }));
            }
        }

        public static void Without_a_GPU_the_reason_is_told()
        {
            try
            {
                Test.True(Library.DescribeDevice(Device.Cuda).NDevices > 0, "devices");
            }
            catch (KvqException exception)
            {
                Test.Equal(Status.Unsupported, exception.Status, "status");
                Test.True(exception.Message.Length > "KVQ_E_UNSUPPORTED: ".Length, "a reason");
            }
            Test.Refused(Status.Argument, "device", () => Library.DescribeDevice(Device.Cpu));
        }

        [DllImport("libcuda.so.1", EntryPoint = "cuMemAlloc_v2")]
        static extern int Allocate(out IntPtr pointer, UIntPtr bytes);

        [DllImport("libcuda.so.1", EntryPoint = "cuMemFree_v2")]
        static extern int Free(IntPtr pointer);

        [DllImport("libcuda.so.1", EntryPoint = "cuMemcpyHtoD_v2")]
        static extern int Upload(IntPtr to, float[] from, UIntPtr bytes);

        [DllImport("libcuda.so.1", EntryPoint = "cuMemcpyDtoH_v2")]
        static extern int Download(float[] to, IntPtr from, UIntPtr bytes);

        static IntPtr OnDevice(float[] x)
        {
            Test.Equal(0, Allocate(out IntPtr pointer, (UIntPtr)(4 * x.Length)), "cuMemAlloc");
            Test.Equal(0, Upload(pointer, x, (UIntPtr)(4 * x.Length)), "cuMemcpyHtoD");
            return pointer;
        }

        internal static ContextOptions Gpu()
        {
            try
            {
                Library.DescribeDevice(Device.Cuda);
            }
            catch (KvqException exception)
            {
                Test.Skip(exception.Message);
            }
            return new ContextOptions { Device = Device.Cuda };
        }

        public static void Attention_on_a_GPU_is_that_of_the_CPU()
        {
            using (var model = new Model("fp16", Rope.None, Gpu()))
            using (var onCpu = new Model())
            {
                float[] k = Model.Numbers(40 * Model.Row, 1), v = Model.Numbers(40 * Model.Row, 2);
                float[] q = Model.Numbers(Model.QueryRow, 3), output = new float[q.Length],
                    expected = new float[q.Length];
                onCpu.Sequence.Append(0, k, v);
                onCpu.Cache.Attend(0, onCpu.Sequence, q, expected);
                Test.Throws<InvalidOperationException>("Append takes host memory", () =>
                    model.Sequence.Append(0, k, v));
                Test.Throws<InvalidOperationException>("Attend takes host memory",
                                                       () => model.Cache.Attend(0, model.Sequence, q, output));
                Test.Throws<InvalidOperationException>("Extend takes host memory", () => model.Cache.Extend(0,
                    new ExtendBatch { Sequences = new[] { model.Sequence } }));
                model.Context.SetStream(IntPtr.Zero);
                IntPtr keys = OnDevice(k), values = OnDevice(v), queries = OnDevice(q), to = OnDevice(output);
                using (var other = new Sequence(model.Cache))
                {
                    model.Sequence.AppendDevice(0, 40, keys, values, Dtype.F32);
                    model.Cache.AppendDevice(0, new DeviceAppendBatch
                    {
                        Sequences = new[] { other }, TokenCounts = new[] { 40 }, K = keys, V = values,
                    });
                    foreach (Sequence sequence in new[] { model.Sequence, other })
                    {
                        model.Cache.AttendDevice(0, new DeviceAttendBatch { Sequences = new[] { sequence }, Q = queries,
                            Output = to });
                        Test.Equal(0, Download(output, to, (UIntPtr)(4 * output.Length)), "cuMemcpyDtoH");
                        for (int i = 0; i < q.Length; ++i) Test.Near(expected[i], output[i], 2e-3, "on a GPU");
                    }
                }
                foreach (IntPtr pointer in new[] { keys, values, queries, to }) Free(pointer);
            }
        }

        public static void A_device_allocator_gets_every_byte_back()
        {
            ContextOptions options = Gpu();
            long bytes = 0, most = 0;
            options.DeviceAllocate = (size, stream) =>
            {
                most = Math.Max(most, bytes += size);
                return Allocate(out IntPtr pointer, (UIntPtr)size) == 0 ? pointer : IntPtr.Zero;
            };
            options.DeviceFree = (pointer, size, stream) =>
            {
                bytes -= size;
                Free(pointer);
            };
            using (var model = new Model("fp16", Rope.None, options)) model.Sequence.Reserve(64);
            Test.True(most > 0 && bytes == 0, most + " bytes at most, " + bytes + " at the end");
        }
    }
}
