using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq.Experimental
{
    /// <summary>Matrices that may be multiplied together, and what that takes.</summary>
    public sealed class PlanGroup
    {
        /// <summary>Numbers of matrices, from 0.</summary>
        public int[] Members { get; }

        /// <summary>Of each scheme; infinity: not possible.</summary>
        public double[] Seconds { get; }

        /// <summary>A group.</summary>
        /// <param name="members">Numbers of matrices, from 0.</param>
        /// <param name="seconds">Of each scheme; infinity: not possible.</param>
        public PlanGroup(int[] members, double[] seconds)
        {
            Members = members ?? throw new ArgumentNullException(nameof(members));
            Seconds = seconds ?? throw new ArgumentNullException(nameof(seconds));
        }
    }

    /// <summary>All ways to group matrices that read the same inputs, for engines whose kernels fuse only equal
    /// schemes. Immutable.</summary>
    public sealed unsafe class PlanFusion : NativeObject
    {
        /// <summary>Find the groupings; see <see cref="ExperimentalNative.kvq_plan_fusion_create"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="bytes">Of each matrix, in each scheme.</param>
        /// <param name="loss">The same.</param>
        /// <param name="groups">Those that can be multiplied; every matrix must be in one.</param>
        public PlanFusion(Context context, double[][] bytes, double[][] loss, PlanGroup[] groups)
            : this(context, bytes, loss, groups, new PlanFusionHandle()) { }

        PlanFusion(Context context, double[][] bytes, double[][] loss, PlanGroup[] groups, PlanFusionHandle handle)
            : base(handle, Create(context, bytes, loss, groups, handle)) { }

        static double[] Table(double[][] rows, int schemes, string argument)
        {
            var all = new List<double>();
            for (int i = 0; i < rows.Length; ++i)
            {
                int n = rows[i] == null ? 0 : rows[i].Length;
                if (n != schemes)
                    throw new ArgumentException(argument + "[" + i + "] has " + n + " elements; there are " + schemes +
                        " schemes", argument);
                all.AddRange(rows[i]);
            }
            return all.ToArray();
        }

        static int Mask(PlanGroup group, int members, string argument)
        {
            int mask = 0;
            foreach (int member in group.Members)
            {
                if (member < 0 || member >= members || member >= Constants.MaxFused)
                    throw new ArgumentException(argument + " has member " + member + " of " + members, "groups");
                mask |= 1 << member;
            }
            return mask;
        }

        static Hooks Create(Context context, double[][] bytes, double[][] loss, PlanGroup[] groups,
                            PlanFusionHandle handle)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (bytes == null) throw new ArgumentNullException(nameof(bytes));
            if (loss == null) throw new ArgumentNullException(nameof(loss));
            if (groups == null) throw new ArgumentNullException(nameof(groups));
            if (loss.Length != bytes.Length)
                throw new ArgumentException("loss has " + loss.Length + " elements; bytes has " + bytes.Length,
                    nameof(loss));
            int schemes = bytes.Length > 0 && bytes[0] != null ? bytes[0].Length : 0;
            var masks = new int[groups.Length];
            for (int i = 0; i < groups.Length; ++i)
            {
                if (groups[i] == null) throw new ArgumentNullException("groups[" + i + "]");
                masks[i] = Mask(groups[i], bytes.Length, "groups[" + i + "]");
            }
            double[] ofBytes = Table(bytes, schemes, nameof(bytes)), ofLoss = Table(loss, schemes, nameof(loss)),
                ofSeconds = Table(Array.ConvertAll(groups, group => group.Seconds), schemes, "seconds");
            kvq_plan_fusion_options raw;
            ExperimentalNative.kvq_plan_fusion_options_init(&raw, (UIntPtr)sizeof(kvq_plan_fusion_options));
            raw.n_members = bytes.Length;
            raw.n_schemes = schemes;
            raw.n_groups = groups.Length;
            var error = Call.Error();
            IntPtr result, it = context.Enter();
            try
            {
                fixed (int* m = masks)
                fixed (double* b = ofBytes, l = ofLoss, s = ofSeconds)
                {
                    raw.groups = m;
                    raw.bytes = b;
                    raw.loss = l;
                    raw.seconds = s;
                    Call.Check(ExperimentalNative.kvq_plan_fusion_create(it, &raw, &result, &error), &error,
                               context.Hooks, handle, result);
                }
            }
            finally
            {
                context.Leave();
            }
            return context.Hooks;
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_plan_fusion_describe_grouping"/>.</summary>
        /// <returns>The groupings that no other one beats, those with the smallest loss first: the options of one
        /// choice.</returns>
        public PlanGroupingInfo[] Groupings()
        {
            var error = Call.Error();
            var info = new kvq_plan_fusion_info { struct_size = (uint)sizeof(kvq_plan_fusion_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_plan_fusion_describe(it, &info, &error), &error, Hooks);
                var all = new PlanGroupingInfo[info.n_groupings];
                for (int i = 0; i < all.Length; ++i)
                {
                    var one = new kvq_plan_grouping_info { struct_size = (uint)sizeof(kvq_plan_grouping_info) };
                    Call.Check(ExperimentalNative.kvq_plan_fusion_describe_grouping(it, i, &one, &error), &error,
                               Hooks);
                    all[i] = new PlanGroupingInfo(&one);
                }
                return all;
            }
            finally
            {
                Leave();
            }
        }
    }
}
