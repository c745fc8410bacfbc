using System;
using Kvq.Experimental;

namespace Kvq.Tests
{
    static class TuningTests
    {
        static Matrix Small(Context context) => Matrix.Quantize(context, Model.Numbers(128 * 256, 1), 128, 256,
            new QuantizeOptions { Scheme = "nuq-2" });

        public static void A_CPU_has_nothing_to_tune()
        {
            var context = new Context();
            Matrix matrix = Small(context);
            using (var other = new Context())
            using (Matrix foreign = Small(other))
            {
                Test.Throws<ArgumentNullException>("matrices", () => Tuning.Tune(null, 1));
                Test.Throws<ArgumentException>("matrices is empty", () => Tuning.Tune(new Matrix[0], 1));
                Test.Throws<ArgumentNullException>("matrices[1]", () => Tuning.Tune(new[] { matrix, null }, 1));
                Test.Refused(Status.Argument, "batch is 0", () => Tuning.Tune(new[] { matrix }, 0));
                Test.Refused(Status.Mismatch, "two contexts", () => Tuning.Tune(new[] { matrix, foreign }, 1));
            }
            Test.Refused(Status.Unsupported, "CPU", () => Tuning.Tune(new[] { matrix }, 1));
            Test.Refused(Status.Unsupported, "CPU", () => Tuning.Save(context));
            Test.Refused(Status.Unsupported, "CPU", () => Tuning.Load(context, ""));
            Test.Throws<ArgumentNullException>("context", () => Tuning.Save(null));
            Test.Throws<ArgumentNullException>("context", () => Tuning.Load(null, ""));
            Test.Throws<ArgumentNullException>("text", () => Tuning.Load(context, null));
            matrix.Dispose();
            context.Dispose();
            Test.Throws<ObjectDisposedException>("Matrix", () => Tuning.Tune(new[] { matrix }, 1));
            Test.Throws<ObjectDisposedException>("Context", () => Tuning.Save(context));
            Test.Throws<ObjectDisposedException>("Context", () => Tuning.Load(context, ""));
        }

        public static void What_a_GPU_measured_is_a_text_that_another_context_goes_by()
        {
            ContextOptions gpu = CudaTests.Gpu();
            using (var context = new Context(gpu))
            using (var other = new Context(gpu))
            using (Matrix matrix = Small(context))
            {
                string before = Tuning.Save(context);
                Tuning.Tune(new[] { matrix }, 3);
                string text = Tuning.Save(context);
                Test.True(text.StartsWith(before, StringComparison.Ordinal), "\"" + text + "\" begins as before");
                Test.True(text.Contains("\tnuq-2\t128\t256\t3\t"), "\"" + text + "\" names the shape");
                Tuning.Tune(new[] { matrix }, 3); // known: nothing is measured
                Test.Equal(text, Tuning.Save(context), "the tuning");
                Test.Refused(Status.Format, "line 4", () => Tuning.Load(other, text + "nothing\n"));
                Test.Refused(Status.Mismatch, "kvq tuning 0", () => Tuning.Load(other, "kvq tuning 0\n"));
                Test.Equal(before, Tuning.Save(other), "what a refused text left");
                Tuning.Load(other, text);
                Test.Equal(text, Tuning.Save(other), "what was loaded");
            }
        }
    }
}
