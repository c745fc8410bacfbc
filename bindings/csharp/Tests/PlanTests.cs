using System;
using System.Collections.Generic;
using System.Linq;
using Kvq.Experimental;

namespace Kvq.Tests
{
    static class PlanTests
    {
        static double GoalOf(PlanGoal goal, PlanCosts it) =>
            goal == PlanGoal.Bytes ? it.Bytes : goal == PlanGoal.Seconds ? it.Seconds : it.Loss;

        static PlanCosts Sum(PlanCosts a, PlanCosts b) =>
            new PlanCosts(a.Bytes + b.Bytes, a.Seconds + b.Seconds, a.Loss + b.Loss);

        static bool Within(PlanCosts it, PlanProblem problem) =>
            it.Bytes <= problem.MaxBytes && it.Seconds <= problem.MaxSeconds && it.Loss <= problem.MaxLoss;

        /// Of all plans within the limits, which begin with what is taken already; infinity if there is none.
        static double LeastGoal(PlanProblem problem, int first, PlanCosts taken)
        {
            if (first == problem.Choices.Length)
                return Within(taken, problem) ? GoalOf(problem.Goal, taken) : double.PositiveInfinity;
            return problem.Choices[first].Min(it => LeastGoal(problem, first + 1, Sum(taken, it)));
        }

        public static void No_plan_within_the_limits_beats_a_solved_one()
        {
            var random = new Random(3);
            Func<double> limit = () => random.Next(3) == 0 ? double.PositiveInfinity : random.Next(20, 80);
            int[] solved = new int[3], refused = new int[3];
            using (var context = new Context())
            {
                for (int round = 0; round < 240; ++round)
                {
                    // Whole numbers, which sums keep exactly.
                    PlanCosts[][] choices = Enumerable.Range(0, random.Next(1, 6)).Select(
                        i => Enumerable.Range(0, random.Next(1, 5)).Select(
                            j => new PlanCosts(random.Next(1, 31), random.Next(1, 31), random.Next(1, 31)))
                        .ToArray()).ToArray();
                    var problem = new PlanProblem
                    {
                        Goal = (PlanGoal)(round % 3), Choices = choices, MaxBytes = limit(), MaxSeconds = limit(),
                        MaxLoss = limit(), Tolerance = 0,
                    };
                    double least = LeastGoal(problem, 0, default(PlanCosts));
                    if (double.IsInfinity(least))
                    {
                        Test.Refused(Status.Limit, "no plan", () => problem.Solve(context));
                        ++refused[round % 3];
                        continue;
                    }
                    PlanSolution found = problem.Solve(context);
                    Test.Equal(choices.Length, found.Chosen.Length, "options");
                    PlanCosts sum = found.Chosen.Select((option, i) => choices[i][option]).Aggregate(Sum);
                    Test.Equal(least, GoalOf(problem.Goal, sum), "the goal");
                    Test.Equal(sum, found.Costs, "the costs");
                    Test.True(found.Bound <= least, "the bound");
                    Test.True(Within(sum, problem), "the limits");
                    ++solved[round % 3];
                }
                Test.True(solved.Min() > 20 && refused.Min() > 5,
                    string.Join(" ", solved) + " plans and " + string.Join(" ", refused) + " refusals");
                var wrong = new PlanProblem
                {
                    Choices = new[] { new[] { new PlanCosts(3, 0, 0), new PlanCosts(2, 0, 0) },
                                      new[] { new PlanCosts(4, 0, 0) } }, MaxBytes = 5,
                };
                Test.Refused(Status.Limit, "max_bytes is 5, but no plan takes less than 6", () => wrong.Solve(context));
                wrong.Choices = new[] { new[] { new PlanCosts(1, double.NaN, 1) } };
                Test.Refused(Status.Argument, "seconds[0] is", () => wrong.Solve(context));
                wrong.Choices = new PlanCosts[2][];
                Test.Refused(Status.Argument, "option_counts[0] is 0", () => wrong.Solve(context));
            }
        }

        public static void Rates_take_all_bits_and_more_where_more_is_lost()
        {
            double loss;
            double[] bits = PlanProblem.Rates(new[] { 100.0, 300 }, new[] { 16.0, 3 }, 0, 1200, out loss);
            Test.Near(1200, 100 * bits[0] + 300 * bits[1], 1e-6, "all bits");
            Test.Near(2, bits[0] - bits[1], 1e-9, "what the first has more");
            Test.Near(16 * Math.Pow(2, -2 * bits[0]) + 3 * Math.Pow(2, -2 * bits[1]), loss, 1e-12, "the loss");
            Test.Throws<ArgumentException>("sensitivities has 1",
                () => PlanProblem.Rates(new[] { 1.0, 2 }, new[] { 1.0 }, 0, 9, out loss));
        }

        public static void No_bits_that_move_to_another_matrix_make_rates_lose_less()
        {
            const double moved = 1e-3;
            var random = new Random(4);
            int atLeast = 0, above = 0;
            for (int round = 0; round < 50; ++round)
            {
                int n = random.Next(2, 8);
                double leastBits = 2 * random.NextDouble(), loss;
                double[] weights = Enumerable.Range(0, n).Select(i => (double)random.Next(1, 1001)).ToArray(),
                    sensitivities = weights.Select(it => Math.Pow(2, 12 * random.NextDouble())).ToArray();
                double total = weights.Sum(it => it * (leastBits + random.NextDouble()));
                sensitivities[random.Next(n)] = 0;
                double[] bits = PlanProblem.Rates(weights, sensitivities, leastBits, total, out loss);
                Func<int, double, double> lost = (i, of) => sensitivities[i] * Math.Pow(2, -2 * of);
                double sum = bits.Select((of, i) => lost(i, of)).Sum();
                Test.Near(total, bits.Select((of, i) => of * weights[i]).Sum(), 1e-9 * total, "all bits");
                Test.Near(sum, loss, 1e-9 * sum, "the loss");
                // The loss is convex: what cannot be bettered by a little is the best there is.
                for (int i = 0; i < n; ++i)
                {
                    Test.True(bits[i] >= leastBits - 1e-12, "bits of matrix " + i);
                    double less = bits[i] - moved / weights[i];
                    if (less < leastBits)
                    {
                        ++atLeast;
                        continue;
                    }
                    ++above;
                    for (int j = 0; j < n; ++j)
                        Test.True(i == j || lost(i, less) - lost(i, bits[i]) + lost(j, bits[j] + moved / weights[j]) -
                            lost(j, bits[j]) >= -1e-12 * sum, "bits that move from " + i + " to " + j + " lose more");
                }
            }
            Test.True(atLeast > 20 && above > 20, atLeast + " with the least bits, " + above + " with more");
        }

        public static void A_plan_is_a_file_and_a_cache_is_made_from_it()
        {
            var schemes = new SortedDictionary<string, string> { { "größer", "tcx-3" }, { "up", "nuq-4" } };
            using (var context = new Context())
            using (Policy policy = Policy.Load(context, "int4"))
            using (var plan = new Plan(context, new PlanContent
            {
                Matrices = schemes, Policy = policy, Bytes = 1000, Loss = 0.25, Note = "by hand",
            }))
            using (Plan loaded = Plan.Load(context, plan.Save()))
            {
                Test.Equal(plan.Save(), loaded.Save(), "the text");
                PlanInfo info = loaded.Describe();
                Test.Equal("2 True 1000 0.25 by hand", FormattableString.Invariant(
                    $"{info.NMatrices} {info.HasPolicy} {info.Bytes} {info.Loss} {info.Note}"), "the plan");
                Test.Equal("größer", loaded.DescribeMatrix(0).Name, "the first matrix");
                Test.Equal("nuq-4", loaded.DescribeMatrix(1).Scheme, "the second one's scheme");
                Test.Equal("tcx-3", loaded.Scheme("größer"), "a scheme");
                Test.Equal(null, loaded.Scheme("gate"), "the scheme of a matrix that is not named");
                using (Policy kept = loaded.Policy())
                using (var cache = new Cache(context, Model.Shape(Rope.Half), kept))
                    Test.Equal("int4", cache.DescribeLayer(0).Formats, "the cache's format");
                string damaged = plan.Save().Replace("tcx-3", "tcx-9");
                Test.Refused(Status.Format, "tcx-9", () => Plan.Load(context, damaged));
                Test.Refused(Status.Format, "version",
                    () => Plan.Load(context, plan.Save().Replace("version: 1", "version: 2")));
                Test.Refused(Status.Format, "empty", () => Plan.Load(context, ""));
                for (int end = 1; end < plan.Save().Length; ++end)
                {
                    // A part of it may be a plan, of less.
                    try
                    {
                        using (Plan part = Plan.Load(context, plan.Save().Substring(0, end)))
                            Test.True(part.Describe().NMatrices <= 2, "matrices of the first " + end);
                    }
                    catch (KvqException exception)
                    {
                        Test.Equal(Status.Format, exception.Status, "status of the first " + end);
                    }
                }
                using (var empty = new Plan(context, new PlanContent()))
                    Test.Refused(Status.State, "nothing of caches", () => empty.Policy());
            }
        }
    }
}
