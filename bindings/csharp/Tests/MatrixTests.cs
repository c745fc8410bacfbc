using System;

namespace Kvq.Tests
{
    static class MatrixTests
    {
        const int Rows = 24, Columns = 128;

        public static void A_linear_layer_is_a_product_with_what_it_dequantizes_to()
        {
            float[] w = Model.Numbers(Rows * Columns, 1), x = Model.Numbers(3 * Columns, 2), y = new float[3 * Rows];
            var options = new QuantizeOptions { Scheme = "fp16", Bias = Model.Numbers(Rows, 3) };
            using (var context = new Context())
            using (Matrix matrix = Matrix.Quantize(context, w, Rows, Columns, options))
            {
                MatrixInfo info = matrix.Describe();
                Test.Equal("fp16 24 128 True", string.Join(" ", info.Scheme, info.Rows, info.Columns, info.HasBias),
                    "matrix");
                Test.Equal("MatrixInfo { HasBias = True, Rows = 24, Columns = 128, Bytes = " + info.Bytes,
                    info.ToString().Split(new[] { ", Bits" }, StringSplitOptions.None)[0], "matrix as text");
                float[] decoded = matrix.Dequantize(0, Rows);
                matrix.Linear(x, y);
                for (int i = 0; i < y.Length; ++i)
                {
                    double expected = options.Bias[i % Rows];
                    for (int c = 0; c < Columns; ++c)
                        expected += (double)decoded[i % Rows * Columns + c] * x[i / Rows * Columns + c];
                    Test.Near(expected, y[i], 1e-4, "product " + i);
                }
                Test.Same(Slice(decoded, 5 * Columns, 2 * Columns), matrix.Dequantize(5, 2), "rows");
                Test.Wrong("firstRow is 23 and rows 2; the matrix has 24", () => matrix.Dequantize(23, 2));
                Test.Wrong("x has 127 elements; [batch, columns] takes a multiple of 128",
                                               () => matrix.Linear(new float[127], y));
                Test.Wrong("y has 71 elements; [batch, rows] takes 72", () => matrix.Linear(x, new float[71]));
            }
        }

        static float[] Slice(float[] x, int from, int n)
        {
            var slice = new float[n];
            Array.Copy(x, from, slice, 0, n);
            return slice;
        }

        public static void Matrices_on_shared_inputs_give_what_each_gives_alone()
        {
            using (var context = new Context())
            using (Matrix one = Matrix.Quantize(context, Model.Numbers(Rows * Columns, 1), Rows, Columns))
            using (Matrix two = Matrix.Quantize(context, Model.Numbers(8 * Columns, 2), 8, Columns,
                                                new QuantizeOptions { Scheme = "vq-2.5" }))
            {
                float[] x = Model.Numbers(2 * Columns, 3), a = new float[2 * Rows], b = new float[16];
                float[] aloneA = new float[a.Length], aloneB = new float[b.Length];
                Matrix.LinearShared(new[] { one, two }, x, new Tensor[] { a, b });
                one.Linear(x, aloneA);
                two.Linear(x, aloneB);
                Test.Same(aloneA, a, "the first");
                Test.Same(aloneB, b, "the second");
                Test.Wrong("y has 1 elements; there are 2 matrices",
                                               () => Matrix.LinearShared(new[] { one, two }, x, new Tensor[] { a }));
                Test.Wrong("y[1] has 15 elements; [batch, rows] takes 16",
                                               () => Matrix.LinearShared(new[] { one, two }, x,
                                               new Tensor[] { a, new float[15] }));
                Test.Throws<InvalidOperationException>("device memory",
                                                       () => one.LinearDevice(IntPtr.Zero, 1, IntPtr.Zero, Dtype.F32));
                Test.Throws<InvalidOperationException>("device memory", () => Matrix.LinearSharedDevice(
                    new[] { one }, IntPtr.Zero, 1, new IntPtr[1], Dtype.F32));
            }
        }

        public static void Files_hold_matrices_by_name()
        {
            using (var context = new Context())
            using (Matrix one = Matrix.Quantize(context, Model.Numbers(Rows * Columns, 1), Rows, Columns))
            using (Matrix two = Matrix.Quantize(context, Model.Numbers(8 * Columns, 2), 8, Columns))
            {
                byte[] file = Matrix.Save(new[] { one, two }, new[] { "größe", "down" });
                using (Matrix again = Matrix.Load(context, file, "größe"))
                    Test.Same(one.Dequantize(0, Rows), again.Dequantize(0, Rows), "weights");
                Test.Refused(Status.Argument, "up", () => Matrix.Load(context, file, "up"));
                Test.Refused(Status.Format, "", () => Matrix.Load(context, new byte[16], "down"));
                Test.Wrong("names has 1 elements; there are 2 matrices",
                                               () => Matrix.Save(new[] { one, two }, new[] { "a" }));
                Test.Wrong("names[1] has a NUL", () => Matrix.Save(new[] { one, two }, new[] { "a", "b\0" }));
                Test.Refused(Status.Argument, "name", () => Matrix.Save(new[] { one, two }, new[] { "a", "a" }));
            }
        }

        public static void A_Hessian_is_used_and_checked()
        {
            // With an identity Hessian the weighted error equals the error, by definition.
            var hessian = new float[Columns * Columns];
            for (int i = 0; i < Columns; ++i) hessian[i * Columns + i] = 1;
            float[] w = Model.Numbers(Rows * Columns, 1);
            var options = new QuantizeOptions { Hessian = hessian, Rounding = Rounding.Nearest };
            using (var context = new Context())
            {
                using (Matrix matrix = Matrix.Quantize(context, w, Rows, Columns, options))
                    Test.Near(matrix.Describe().Error, matrix.Describe().ProxyError, 1e-5, "proxy error");
                Test.Wrong("Hessian has 4 elements; [columns, columns] takes 16384",
                    () => Matrix.Quantize(context, w, Rows, Columns, new QuantizeOptions { Hessian = new float[4] }));
                Test.Wrong("Bias has 3 elements; [rows] takes 24",
                    () => Matrix.Quantize(context, w, Rows, Columns, new QuantizeOptions { Bias = new float[3] }));
                Test.Wrong("w has 3072 elements; [rows, columns] takes 3200",
                    () => Matrix.Quantize(context, w, 25, Columns));
                Test.Refused(Status.Argument, "scheme",
                    () => Matrix.Quantize(context, w, Rows, Columns, new QuantizeOptions { Scheme = "nuq-77" }));
            }
        }

        public static void Progress_rises_can_stop_and_can_throw()
        {
            float[] w = Model.Numbers(64 * 256, 1);
            double last = 0;
            bool falls = false;
            int calls = 0;
            var options = new QuantizeOptions { Scheme = "tcx-3" };
            options.Progress = done =>
            {
                falls |= done < last || done > 1;
                last = done;
                ++calls;
                return true;
            };
            using (var context = new Context())
            {
                Matrix.Quantize(context, w, 64, 256, options).Dispose();
                Test.True(calls > 0 && !falls, "progress rises");
                options.Progress = done => false;
                Test.Refused(Status.Cancelled, "", () => Matrix.Quantize(context, w, 64, 256, options));
                options.Progress = done =>
                {
                    throw new TimeoutException("enough");
                };
                Test.Throws<TimeoutException>("enough", () => Matrix.Quantize(context, w, 64, 256, options));
            }
        }
    }
}
