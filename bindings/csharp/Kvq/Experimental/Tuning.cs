using System;
using Kvq.Raw;

namespace Kvq.Experimental
{
    /// <summary>Which of a GPU's kernels are the fastest for linear layers, measured instead of estimated.</summary>
    public static unsafe class Tuning
    {
        /// <summary>Measure for calls of <see cref="Matrix.LinearSharedDevice"/> with matrices of these schemes and
        /// shapes, and exactly so many rows; see <see cref="ExperimentalNative.qp_tune"/>. The last bits of results may
        /// change.</summary>
        /// <param name="matrices">Of one context, with the same columns and signs.</param>
        /// <param name="batch">Rows.</param>
        public static void Tune(Matrix[] matrices, int batch)
        {
            NativeObject[] sorted = UseMany.Sorted(matrices, nameof(matrices));
            var error = Call.Error();
            using (new UseMany(sorted, alone: false))
            fixed (IntPtr* pointers = UseMany.Pointers(matrices))
                Call.Check(ExperimentalNative.qp_tune(pointers, matrices.Length, batch, &error), &error,
                           matrices[0].Hooks);
        }

        /// <summary>What was measured and loaded; see <see cref="ExperimentalNative.qp_tuning_save"/>.</summary>
        /// <param name="context">Where it was.</param>
        /// <returns>A line for each device, scheme and shape.</returns>
        public static string Save(Context context)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            IntPtr it = context.Enter();
            try
            {
                return System.Text.Encoding.UTF8.GetString(Files.Save((buffer, capacity, size, error) =>
                    ExperimentalNative.qp_tuning_save(it, buffer, capacity, size, error), context.Hooks));
            }
            finally
            {
                context.Leave();
            }
        }

        /// <summary>Go by what was measured before; see <see cref="ExperimentalNative.qp_tuning_load"/>.</summary>
        /// <param name="context">What is to go by it.</param>
        /// <param name="text">As <see cref="Save"/> gave it.</param>
        public static void Load(Context context, string text)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] bytes = Text.Needed(text, nameof(text));
            var error = Call.Error();
            IntPtr it = context.Enter();
            try
            {
                fixed (byte* start = bytes)
                    Call.Check(ExperimentalNative.qp_tuning_load(it, start, (UIntPtr)(bytes.Length - 1), &error),
                               &error, context.Hooks);
            }
            finally
            {
                context.Leave();
            }
        }
    }
}
