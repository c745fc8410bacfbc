using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq.Experimental
{
    public sealed partial class PlanContent
    {
        /// <summary>Schemes by the names of matrices; null (default): none.</summary>
        public IDictionary<string, string> Matrices { get; set; }

        /// <summary>How caches store pages; null (default): the plan says nothing of caches.</summary>
        public Policy Policy { get; set; }
    }

    /// <summary>What a planner decided, as a file: the scheme of each matrix and how caches store pages.
    /// Immutable.</summary>
    public sealed unsafe class Plan : NativeObject
    {
        /// <summary>See <see cref="ExperimentalNative.kvq_plan_create"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="content">What is in it.</param>
        public Plan(Context context, PlanContent content) : this(context, content, new PlanHandle()) { }

        Plan(Context context, PlanContent content, PlanHandle handle)
            : base(handle, Create(context, content, handle)) { }

        Plan(PlanHandle handle, Hooks hooks) : base(handle, hooks) { }

        static Hooks Create(Context context, PlanContent content, PlanHandle handle)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (content == null) throw new ArgumentNullException(nameof(content));
            var names = new List<string>();
            var schemes = new List<string>();
            if (content.Matrices != null)
            {
                names.AddRange(content.Matrices.Keys);
                schemes.AddRange(content.Matrices.Values);
            }
            byte[] note = Text.Bytes(content.Note, "Note");
            kvq_plan_content raw = content.raw;
            raw.n_matrices = names.Count;
            var used = new List<NativeObject> { context };
            if (content.Policy != null) used.Add(content.Policy);
            var error = Call.Error();
            IntPtr result;
            using (var ofNames = new Texts(names.ToArray(), "names"))
            using (var ofSchemes = new Texts(schemes.ToArray(), "schemes"))
            using (new UseMany(UseMany.Sorted(used.ToArray(), "objects"), alone: false))
            fixed (byte** n = ofNames.Pointers, s = ofSchemes.Pointers)
            fixed (byte* text = note)
            {
                raw.names = n;
                raw.schemes = s;
                raw.note = text;
                if (content.Policy != null) raw.policy = content.Policy.Handle.DangerousGetHandle();
                Call.Check(ExperimentalNative.kvq_plan_create(context.Handle.DangerousGetHandle(), &raw, &result,
                    &error), &error, context.Hooks, handle, result);
            }
            return context.Hooks;
        }

        /// <summary>Read what <see cref="Save"/> or the program's "kvq plan" wrote.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="yaml">The text.</param>
        /// <returns>The plan.</returns>
        public static Plan Load(Context context, string yaml)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] text = Text.Needed(yaml, nameof(yaml));
            var error = Call.Error();
            var handle = new PlanHandle();
            IntPtr result, it = context.Enter();
            try
            {
                fixed (byte* start = text)
                    Call.Check(ExperimentalNative.kvq_plan_load(it, start, (UIntPtr)(text.Length - 1), &result, &error),
                               &error, context.Hooks, handle, result);
            }
            finally
            {
                context.Leave();
            }
            return new Plan(handle, context.Hooks);
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_save"/>.</summary>
        /// <returns>YAML, which "kvq quantize --plan" reads too. The same plan gives the same text.</returns>
        public string Save()
        {
            IntPtr it = Enter();
            try
            {
                return System.Text.Encoding.UTF8.GetString(Files.Save((buffer, capacity, size, error) =>
                    ExperimentalNative.kvq_plan_save(it, buffer, capacity, size, error), Hooks));
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_describe"/>.</summary>
        /// <returns>What is in the plan.</returns>
        public PlanInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_plan_info { struct_size = (uint)sizeof(kvq_plan_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_plan_describe(it, &info, &error), &error, Hooks);
                return new PlanInfo(&info);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_describe_matrix"/>.</summary>
        /// <param name="index">0 … NMatrices − 1, in the order of the plan.</param>
        /// <returns>A matrix and its scheme.</returns>
        public PlanMatrixInfo DescribeMatrix(int index)
        {
            var error = Call.Error();
            var info = new kvq_plan_matrix_info { struct_size = (uint)sizeof(kvq_plan_matrix_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_plan_describe_matrix(it, index, &info, &error), &error, Hooks);
                return new PlanMatrixInfo(&info);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_scheme"/>.</summary>
        /// <param name="name">Of a matrix.</param>
        /// <returns>Its scheme; null if the plan does not name it.</returns>
        public string Scheme(string name)
        {
            byte[] text = Text.Needed(name, nameof(name));
            IntPtr it = Enter();
            try
            {
                fixed (byte* start = text) return Text.Read(ExperimentalNative.kvq_plan_scheme(it, start));
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_policy"/>.</summary>
        /// <returns>The policy of caches.</returns>
        public Policy Policy()
        {
            var error = Call.Error();
            var handle = new PolicyHandle();
            IntPtr result, it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_plan_policy(it, &result, &error), &error, Hooks, handle, result);
            }
            finally
            {
                Leave();
            }
            return new Policy(handle, Hooks);
        }
    }
}
