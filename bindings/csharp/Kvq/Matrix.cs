using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed partial class QuantizeOptions
    {
        /// <summary>Receives the progress of the call, 0 … 1; returning false ends it with <see
        /// cref="Status.Cancelled"/>. Called from the calling thread; an exception ends the call, which throws
        /// it. May not use the context or objects made from it.</summary>
        public Func<double, bool> Progress { get; set; }
    }

    /// <summary>A linear layer y = x·Wᵀ + b with weights of 1 to 8 bits. Immutable; several threads may use it at
    /// once.</summary>
    public sealed unsafe partial class Matrix : NativeObject
    {
        readonly Device device;
        readonly MatrixInfo info;

        Matrix(MatrixHandle handle, Context context) : base(handle, context.Hooks)
        {
            device = context.Device;
            var error = Call.Error();
            var raw = new qp_matrix_info { struct_size = (uint)sizeof(qp_matrix_info) };
            Call.Check(Native.qp_matrix_describe(handle.DangerousGetHandle(), &raw, &error), &error, Hooks);
            info = new MatrixInfo(&raw);
        }

        /// <summary>Quantize a matrix; see <see cref="Native.qp_quantize"/>.</summary>
        /// <param name="context">Context of the matrix.</param>
        /// <param name="w">Weights [rows, columns], of the type in the options.</param>
        /// <param name="rows">Outputs of the layer.</param>
        /// <param name="columns">Inputs of the layer.</param>
        /// <param name="options">Null: defaults, of the weights' type.</param>
        /// <returns>The matrix.</returns>
        public static Matrix Quantize(Context context, Tensor w, long rows, long columns,
            QuantizeOptions options = null)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (options == null) options = new QuantizeOptions { Dtype = w.Dtype };
            Shape.Same(options.Dtype, w.Dtype, "w", "options.Dtype");
            if (rows < 1 || columns < 1 || rows > int.MaxValue || columns > int.MaxValue)
                throw new ArgumentException("rows and columns are " + rows + " and " + columns, nameof(rows));
            Shape.Exactly(w, rows * columns, "w", "[rows, columns]");
            if (options.Hessian != null)
                Shape.Exactly(options.Hessian, columns * columns, "Hessian", "[columns, columns]");
            if (options.Bias != null) Shape.Exactly(options.Bias, rows, "Bias", "[rows]");
            byte[] scheme = Text.Bytes(options.Scheme, "Scheme");
            qp_quantize_options raw = options.raw;
            var error = Call.Error();
            var handle = new MatrixHandle();
            IntPtr result;
            using (Use it = context.Use())
            using (var progress = new Progress(options.Progress, context.Hooks))
            fixed (float* floats = w.Floats, hessian = options.Hessian, bias = options.Bias)
            fixed (ushort* bits = w.Bits)
            fixed (byte* name = scheme)
            {
                if (name != null) raw.scheme = name;
                raw.hessian = hessian;
                raw.bias = bias;
                raw.progress = progress.Function;
                raw.progress_user = progress.User;
                Status status = Native.qp_quantize(it, &raw, w.Start(floats, bits), rows, columns, &result, &error);
                handle.Take(result);
                progress.Rethrow();
                Call.Check(status, &error, context.Hooks, handle, result);
            }
            return new Matrix(handle, context);
        }

        /// <summary>Predict the size of a matrix; see <see cref="Native.qp_matrix_predict_bytes"/>.</summary>
        /// <param name="scheme">As in <see cref="QuantizeOptions"/>.</param>
        /// <param name="rows">Outputs of the layer.</param>
        /// <param name="columns">Inputs of the layer.</param>
        /// <param name="hasBias">Whether it has a bias.</param>
        /// <param name="allocated">Bytes that a CPU context allocates for it.</param>
        /// <returns>As <see cref="MatrixInfo.Bytes"/>.</returns>
        public static ulong PredictBytes(string scheme, long rows, long columns, bool hasBias, out ulong allocated)
        {
            Library.Require();
            var error = Call.Error();
            ulong bytes, all;
            fixed (byte* name = Text.Needed(scheme, nameof(scheme)))
                Call.Check(Native.qp_matrix_predict_bytes(name, rows, columns, hasBias ? 1 : 0, &bytes, &all, &error),
                           &error, null);
            allocated = all;
            return bytes;
        }

        /// <summary>See <see cref="Native.qp_matrix_load"/>.</summary>
        /// <param name="context">Context of the matrix.</param>
        /// <param name="file">Bytes of a safetensors file.</param>
        /// <param name="name">Name given to <see cref="Save"/>.</param>
        /// <returns>The matrix.</returns>
        public static Matrix Load(Context context, byte[] file, string name)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] text = Text.Needed(name, nameof(name));
            var handle = new MatrixHandle();
            Files.Load(context, file, nameof(file), handle, (it, buffer, size, result, error) =>
            {
                fixed (byte* start = text) return Native.qp_matrix_load(it, buffer, size, start, result, error);
            });
            return new Matrix(handle, context);
        }

        /// <summary>Write matrices as a safetensors file; see <see cref="Native.qp_matrix_save"/>.</summary>
        /// <param name="matrices">The matrices.</param>
        /// <param name="names">A name for each.</param>
        /// <returns>The bytes of a file.</returns>
        public static byte[] Save(Matrix[] matrices, string[] names)
        {
            NativeObject[] sorted = UseMany.Sorted(matrices, nameof(matrices));
            if (names == null) throw new ArgumentNullException(nameof(names));
            if (names.Length != matrices.Length)
                throw new ArgumentException("names has " + names.Length + " elements; there are " + matrices.Length +
                    " matrices", nameof(names));
            using (new UseMany(sorted, alone: false))
            using (var pins = new Pins())
            {
                var starts = new IntPtr[names.Length];
                for (int i = 0; i < starts.Length; ++i)
                    starts[i] = pins.Start(Text.Needed(names[i], "names[" + i + "]"));
                return Files.Save(matrices[0], (it, buffer, capacity, size, error) =>
                {
                    fixed (IntPtr* pointers = UseMany.Pointers(matrices), texts = starts)
                        return Native.qp_matrix_save(pointers, (byte**)texts, matrices.Length, buffer, capacity, size,
                            error);
                });
            }
        }

        /// <summary>Description of the matrix; see <see cref="Native.qp_matrix_describe"/>.</summary>
        /// <returns>The same object every time.</returns>
        public MatrixInfo Describe() => info;

        /// <summary>Decode rows of the matrix that <see cref="Linear(float[], float[])"/> multiplies by; see
        /// <see cref="Native.qp_matrix_dequantize"/>.</summary>
        /// <param name="firstRow">The first row.</param>
        /// <param name="rows">Number of rows.</param>
        /// <returns>[rows, columns].</returns>
        public float[] Dequantize(long firstRow, long rows)
        {
            if (firstRow < 0 || rows < 1 || rows > info.Rows - firstRow)
                throw new ArgumentException("firstRow is " + firstRow + " and rows " + rows + "; the matrix has " +
                    info.Rows, nameof(rows));
            var w = new float[checked(rows * info.Columns)];
            var error = Call.Error();
            using (Use it = Use())
            fixed (float* start = w)
                Call.Check(Native.qp_matrix_dequantize(it, firstRow, rows, start, &error), &error, Hooks);
            return w;
        }
    }
}
