using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Matrix
    {
        /// <summary>Compute y = x·Wᵀ + b; see <see cref="Native.qp_linear"/>.</summary>
        /// <param name="x">[batch, columns].</param>
        /// <param name="y">Receives [batch, rows]; may not overlap <paramref name="x"/>.</param>
        public void Linear(float[] x, float[] y) => Linear((Tensor)x, (Tensor)y);

        /// <summary>Compute y = x·Wᵀ + b of any type.</summary>
        /// <param name="x">[batch, columns].</param>
        /// <param name="y">Receives [batch, rows], of the same type; may not overlap <paramref name="x"/>.</param>
        public void Linear(Tensor x, Tensor y)
        {
            Shape.Host(device, nameof(Linear));
            int batch = Shape.Rows(x, info.Columns, "x", "[batch, columns]");
            Shape.Exactly(y, batch * info.Rows, "y", "[batch, rows]");
            Shape.Same(x.Dtype, y.Dtype, "y", "x");
            fixed (float* xFloats = x.Floats, yFloats = y.Floats)
            fixed (ushort* xBits = x.Bits, yBits = y.Bits)
                Linear(x.Start(xFloats, xBits), batch, y.Start(yFloats, yBits), x.Dtype);
        }

        /// <summary>Compute y = x·Wᵀ + b in device memory, in stream order.</summary>
        /// <param name="x">Device memory: [batch, columns].</param>
        /// <param name="batch">Rows of x and y.</param>
        /// <param name="y">Device memory that receives [batch, rows].</param>
        /// <param name="dtype">Type of x and y.</param>
        public void LinearDevice(IntPtr x, int batch, IntPtr y, Dtype dtype)
        {
            Shape.OnDevice(device, nameof(LinearDevice));
            Linear((void*)x, batch, (void*)y, dtype);
        }

        void Linear(void* x, int batch, void* y, Dtype dtype)
        {
            var error = Call.Error();
            using (Use it = Use()) Call.Check(Native.qp_linear(it, x, batch, y, dtype, &error), &error, Hooks);
        }

        /// <summary>Multiply several matrices by the same inputs in one call; see
        /// <see cref="Native.qp_linear_shared"/>.</summary>
        /// <param name="matrices">Matrices of one context with the same columns and signs.</param>
        /// <param name="x">[batch, columns].</param>
        /// <param name="y">Each receives [batch, rows of that matrix], all of x's type.</param>
        public static void LinearShared(Matrix[] matrices, Tensor x, Tensor[] y)
        {
            NativeObject[] sorted = UseMany.Sorted(matrices, nameof(matrices));
            Shape.Host(matrices[0].device, nameof(LinearShared));
            int batch = Shape.Rows(x, matrices[0].info.Columns, "x", "[batch, columns]");
            SameLength(matrices, y == null ? -1 : y.Length);
            for (int i = 0; i < y.Length; ++i)
            {
                if (matrices[i].info.Columns != matrices[0].info.Columns)
                    throw new ArgumentException("matrices[" + i + "] has " + matrices[i].info.Columns +
                                                " columns, matrices[0] has " + matrices[0].info.Columns,
                                                nameof(matrices));
                Shape.Exactly(y[i], batch * matrices[i].info.Rows, "y[" + i + "]", "[batch, rows]");
                Shape.Same(x.Dtype, y[i].Dtype, "y[" + i + "]", "x");
            }
            using (var pins = new Pins())
            {
                IntPtr[] outputs = Array.ConvertAll(y, it => pins.First(it));
                fixed (float* floats = x.Floats)
                fixed (ushort* bits = x.Bits)
                    LinearShared(matrices, sorted, x.Start(floats, bits), batch, outputs, x.Dtype);
            }
        }

        /// <summary>Like <see cref="LinearShared(Matrix[], Tensor, Tensor[])"/>, in device memory, in stream
        /// order.</summary>
        /// <param name="matrices">Matrices of one context with the same columns and signs.</param>
        /// <param name="x">Device memory: [batch, columns].</param>
        /// <param name="batch">Rows of x and of every output.</param>
        /// <param name="y">Device memory: each receives [batch, rows of that matrix].</param>
        /// <param name="dtype">Type of x and all outputs.</param>
        public static void LinearSharedDevice(Matrix[] matrices, IntPtr x, int batch, IntPtr[] y, Dtype dtype)
        {
            NativeObject[] sorted = UseMany.Sorted(matrices, nameof(matrices));
            Shape.OnDevice(matrices[0].device, nameof(LinearSharedDevice));
            SameLength(matrices, y == null ? -1 : y.Length);
            LinearShared(matrices, sorted, (void*)x, batch, y, dtype);
        }

        static void LinearShared(Matrix[] matrices, NativeObject[] sorted, void* x, int batch, IntPtr[] y, Dtype dtype)
        {
            var error = Call.Error();
            using (new UseMany(sorted, alone: false))
            fixed (IntPtr* pointers = UseMany.Pointers(matrices), outputs = y)
                Call.Check(Native.qp_linear_shared(pointers, matrices.Length, x, batch, (void**)outputs, dtype, &error),
                    &error, matrices[0].Hooks);
        }

        static void SameLength(Matrix[] matrices, int outputs)
        {
            if (outputs < 0) throw new ArgumentNullException("y");
            if (outputs != matrices.Length)
                throw new ArgumentException("y has " + outputs + " elements; there are " + matrices.Length +
                    " matrices", "y");
        }
    }

    /// Pins any number of arrays.
    sealed unsafe class Pins : IDisposable
    {
        readonly List<GCHandle> pins = new List<GCHandle>();

        internal IntPtr Start(Array array)
        {
            pins.Add(GCHandle.Alloc(array, GCHandleType.Pinned));
            return pins[pins.Count - 1].AddrOfPinnedObject();
        }

        internal IntPtr First(in Tensor tensor)
        {
            if (tensor.Floats != null) return (IntPtr)tensor.Start((float*)Start(tensor.Floats), null);
            return (IntPtr)tensor.Start(null, tensor.Bits == null ? null : (ushort*)Start(tensor.Bits));
        }

        public void Dispose()
        {
            foreach (GCHandle pin in pins) pin.Free();
        }
    }
}
