using System;

namespace Kvq
{
    /// <summary>Numbers in host memory: a range of a managed array, or native memory that the caller keeps alive. A
    /// float[] converts implicitly.</summary>
    public readonly struct Tensor
    {
        readonly float[] floats;
        readonly ushort[] halves;
        readonly IntPtr pointer;
        readonly int offset;

        Tensor(float[] floats, ushort[] halves, IntPtr pointer, int offset, long length, Dtype dtype)
        {
            this.floats = floats;
            this.halves = halves;
            this.pointer = pointer;
            this.offset = offset;
            Length = length;
            Dtype = dtype;
        }

        /// <summary>Number of elements.</summary>
        public long Length { get; }

        /// <summary>Element type.</summary>
        public Dtype Dtype { get; }

        /// <summary>Whether the tensor has no memory.</summary>
        public bool IsNull => floats == null && halves == null && pointer == IntPtr.Zero;

        /// <summary>All of an array.</summary>
        /// <param name="values">Null gives a tensor that <see cref="IsNull"/>.</param>
        public static implicit operator Tensor(float[] values) =>
            new Tensor(values, null, IntPtr.Zero, 0, values == null ? 0 : values.Length, Dtype.F32);

        /// <summary>A range of an array.</summary>
        /// <param name="values">The array.</param>
        /// <param name="offset">The first element.</param>
        /// <param name="length">Number of elements.</param>
        /// <returns>The tensor; it refers to the array.</returns>
        public static Tensor F32(float[] values, int offset, int length)
        {
            Check(values, offset, length);
            return new Tensor(values, null, IntPtr.Zero, offset, length, Dtype.F32);
        }

        /// <summary>IEEE 754 binary16, given as bits.</summary>
        /// <param name="bits">The array.</param>
        /// <returns>The tensor; it refers to the array.</returns>
        public static Tensor F16(ushort[] bits) => Halves(bits, 0, bits == null ? 0 : bits.Length, Dtype.F16);

        /// <summary>bfloat16, given as bits.</summary>
        /// <param name="bits">The array.</param>
        /// <returns>The tensor; it refers to the array.</returns>
        public static Tensor Bf16(ushort[] bits) => Halves(bits, 0, bits == null ? 0 : bits.Length, Dtype.Bf16);

        /// <summary>A range of an array of 16-bit numbers.</summary>
        /// <param name="bits">The array.</param>
        /// <param name="offset">The first element.</param>
        /// <param name="length">Number of elements.</param>
        /// <param name="dtype"><see cref="Dtype.F16"/> or <see cref="Dtype.Bf16"/>.</param>
        /// <returns>The tensor; it refers to the array.</returns>
        public static Tensor Halves(ushort[] bits, int offset, int length, Dtype dtype)
        {
            Check(bits, offset, length);
            if (dtype != Dtype.F16 && dtype != Dtype.Bf16)
                throw new ArgumentException("dtype is " + dtype + "; 16-bit numbers are F16 or Bf16", nameof(dtype));
            return new Tensor(null, bits, IntPtr.Zero, offset, length, dtype);
        }

        /// <summary>Native memory that the CPU can read, such as Unity's NativeArray or a pinned Span. It must stay
        /// alive and in place until the call that uses it has returned.</summary>
        /// <param name="pointer">The first element.</param>
        /// <param name="length">Number of elements.</param>
        /// <param name="dtype">Element type.</param>
        /// <returns>The tensor.</returns>
        public static unsafe Tensor At(void* pointer, long length, Dtype dtype)
        {
            if (length < 0) throw new ArgumentOutOfRangeException(nameof(length), length, "is negative");
            if (pointer == null) throw new ArgumentNullException(nameof(pointer));
            return new Tensor(null, null, (IntPtr)pointer, 0, length, dtype);
        }

        /// Returns a span; an empty one starts at NULL.
        internal static unsafe Tensor Pinned(float* pointer, int length) =>
            new Tensor(null, null, (IntPtr)pointer, 0, length, Dtype.F32);

        internal float[] Floats => floats;

        internal ushort[] Bits => halves;

        /// Returns the first element when the arrays are pinned at these addresses.
        internal unsafe void* Start(float* pinnedFloats, ushort* pinnedBits)
        {
            if (pinnedFloats != null) return pinnedFloats + offset;
            if (pinnedBits != null) return pinnedBits + offset;
            return (void*)pointer;
        }

        static void Check(Array values, int offset, int length)
        {
            if (values == null) throw new ArgumentNullException(nameof(values));
            if (offset < 0 || length < 0 || length > values.Length - offset)
                throw new ArgumentOutOfRangeException(nameof(length), "offset " + offset + " and length " + length +
                                                      " reach beyond an array of " + values.Length);
        }
    }

    /// Checks shapes before a call. An empty array pins to NULL, so empty arrays are refused.
    static class Shape
    {
        /// Returns the rows of a dense tensor.
        internal static int Rows(in Tensor tensor, long row, string name, string shape)
        {
            Present(tensor, name);
            if (tensor.Length == 0 || tensor.Length % row != 0 || tensor.Length / row > int.MaxValue)
                throw new ArgumentException(name + " has " + tensor.Length + " elements; " + shape +
                                            " takes a multiple of " + row, name);
            return (int)(tensor.Length / row);
        }

        internal static void Exactly(in Tensor tensor, long needed, string name, string shape)
        {
            Present(tensor, name);
            if (tensor.Length != needed)
                throw new ArgumentException(name + " has " + tensor.Length + " elements; " + shape + " takes " + needed,
                    name);
        }

        internal static void AtLeast(long length, long needed, string name, string shape)
        {
            if (length < needed)
                throw new ArgumentException(name + " has " + length + " elements; " + shape + " takes " + needed, name);
        }

        internal static void Present(in Tensor tensor, string name)
        {
            if (tensor.IsNull) throw new ArgumentNullException(name);
        }

        /// Refuses values of a layer whose keys contain them; an array without elements is none, too.
        internal static Tensor Absent(in Tensor tensor, string name)
        {
            if (tensor.Length > 0)
                throw new ArgumentException(name + " has " + tensor.Length + " elements; there must be none: the " +
                    "layer's values are a prefix of its keys", name);
            return default(Tensor);
        }

        internal static void Same(Dtype expected, Dtype given, string name, string other)
        {
            if (expected != given)
                throw new ArgumentException(name + " is " + given + " but " + other + " is " + expected, name);
        }

        /// Returns the extent of the strides; 0 is dense.
        internal static void Strided(in Tensor tensor, long tokens, int heads, int dim, long tokenStride,
            long headStride, string name)
        {
            Present(tensor, name);
            NotNegative(tokenStride, name, "token stride");
            NotNegative(headStride, name, "head stride");
            // In double: a value that overflows 64 bits is too long for any array.
            double reach = (tokens - 1.0) * (tokenStride == 0 ? (double)heads * dim : tokenStride) +
                           (heads - 1.0) * (headStride == 0 ? dim : headStride) + dim;
            if (tensor.Length < reach)
                throw new ArgumentException(name + " has " + tensor.Length + " elements; " + tokens + " rows of " +
                    heads + " heads of " + dim + " reach to " + reach.ToString("F0"), name);
        }

        static void NotNegative(long value, string name, string what)
        {
            if (value < 0)
                throw new ArgumentException(name + " " + what + " is " + value + ", must not be negative", name);
        }

        /// Returns the rows of a batch; one per sequence without counts.
        internal static long Sum(int[] counts, int sequences, string name)
        {
            if (counts == null) return sequences;
            if (counts.Length != sequences)
                throw new ArgumentException(name + " has " + counts.Length + " elements; there are " + sequences +
                    " sequences", name);
            long sum = 0;
            for (int i = 0; i < counts.Length; ++i)
            {
                if (counts[i] < 1)
                    throw new ArgumentException(name + "[" + i + "] is " + counts[i] + ", must be at least 1", name);
                sum += counts[i];
            }
            return sum;
        }

        internal static void Positions(int[] positions, long rows, string name)
        {
            if (positions != null && positions.Length != rows)
                throw new ArgumentException(name + " has " + positions.Length + " elements; there are " + rows +
                    " rows", name);
        }

        internal static void Numbers(int[] given, long needed, string name, string shape)
        {
            if (given != null && given.LongLength != needed)
                throw new ArgumentException(name + " has " + given.LongLength + " elements; " + shape + " takes " +
                    needed, name);
        }

        internal static void Host(Device device, string method)
        {
            if (device != Device.Cpu)
                throw new InvalidOperationException(method + " takes host memory, and the context computes on " +
                    device + ": use " + method + "Device");
        }

        internal static void OnDevice(Device device, string method)
        {
            if (device == Device.Cpu)
                throw new InvalidOperationException(method +
                    " takes device memory, and the context computes on the CPU");
        }
    }
}
