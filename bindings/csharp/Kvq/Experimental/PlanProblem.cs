using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq.Experimental
{
    /// <summary>What an option of a choice costs, and a plan all in all.</summary>
    public struct PlanCosts
    {
        /// <summary>Memory.</summary>
        public double Bytes;

        /// <summary>Time.</summary>
        public double Seconds;

        /// <summary>What is lost.</summary>
        public double Loss;

        /// <summary>All three.</summary>
        /// <param name="bytes">Memory.</param>
        /// <param name="seconds">Time.</param>
        /// <param name="loss">What is lost.</param>
        public PlanCosts(double bytes, double seconds, double loss)
        {
            Bytes = bytes;
            Seconds = seconds;
            Loss = loss;
        }
    }

    /// <summary>A plan, as <see cref="PlanProblem.Solve"/> finds it.</summary>
    public sealed class PlanSolution
    {
        internal PlanSolution(int[] chosen, kvq_plan_costs costs)
        {
            Chosen = chosen;
            Costs = new PlanCosts(costs.bytes, costs.seconds, costs.loss);
            Bound = costs.bound;
        }

        /// <summary>The number of each choice's option, from 0.</summary>
        public int[] Chosen { get; }

        /// <summary>What they cost together.</summary>
        public PlanCosts Costs { get; }

        /// <summary>No plan within the limits has a smaller goal.</summary>
        public double Bound { get; }
    }

    public sealed unsafe partial class PlanProblem
    {
        /// <summary>The options of each choice.</summary>
        public PlanCosts[][] Choices { get; set; }

        /// <summary>Take one option of every choice, so that the goal is as small as possible and the limits hold; see
        /// <see cref="ExperimentalNative.kvq_plan_solve"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <returns>The plan.</returns>
        public PlanSolution Solve(Context context)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (Choices == null) throw new ArgumentNullException(nameof(Choices));
            int[] counts = Array.ConvertAll(Choices, choice => choice == null ? 0 : choice.Length);
            var options = new List<PlanCosts>();
            foreach (PlanCosts[] choice in Choices)
                if (choice != null) options.AddRange(choice);
            PlanCosts[] all = options.ToArray();
            double[] bytes = Array.ConvertAll(all, it => it.Bytes), seconds = Array.ConvertAll(all, it => it.Seconds),
                loss = Array.ConvertAll(all, it => it.Loss);
            var chosen = new int[counts.Length];
            var costs = new kvq_plan_costs { struct_size = (uint)sizeof(kvq_plan_costs) };
            kvq_plan_problem problem = raw;
            problem.n_choices = counts.Length;
            var error = Call.Error();
            IntPtr handle = context.Enter();
            try
            {
                fixed (int* ofChoices = counts, to = chosen)
                fixed (double* b = bytes, s = seconds, l = loss)
                {
                    problem.option_counts = ofChoices;
                    problem.bytes = b;
                    problem.seconds = s;
                    problem.loss = l;
                    Call.Check(ExperimentalNative.kvq_plan_solve(handle, &problem, to, counts.Length, &costs, &error),
                               &error, context.Hooks);
                }
            }
            finally
            {
                context.Leave();
            }
            return new PlanSolution(chosen, costs);
        }

        /// <summary>The bits that each matrix would get if codes were as good as they can be; see
        /// <see cref="ExperimentalNative.kvq_plan_rates"/>.</summary>
        /// <param name="weights">Numbers in each.</param>
        /// <param name="sensitivities">Loss of each at a relative squared error of 1.</param>
        /// <param name="leastBits">Of a weight.</param>
        /// <param name="totalBits">Of all weights.</param>
        /// <param name="loss">What is lost, which no plan goes below.</param>
        /// <returns>The bits of a weight of each matrix.</returns>
        public static double[] Rates(double[] weights, double[] sensitivities, double leastBits, double totalBits,
                                     out double loss)
        {
            if (weights == null) throw new ArgumentNullException(nameof(weights));
            if (sensitivities == null) throw new ArgumentNullException(nameof(sensitivities));
            if (sensitivities.Length != weights.Length)
                throw new ArgumentException("sensitivities has " + sensitivities.Length + " elements; there are " +
                    weights.Length + " weights", nameof(sensitivities));
            Library.Require();
            var bits = new double[weights.Length];
            var error = Call.Error();
            double lost;
            fixed (double* w = weights, s = sensitivities, to = bits)
                Call.Check(ExperimentalNative.kvq_plan_rates(weights.Length, w, s, leastBits, totalBits, to, &lost,
                    &error), &error, null);
            loss = lost;
            return bits;
        }
    }
}
