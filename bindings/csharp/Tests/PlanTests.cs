using System;
using System.Collections.Generic;
using System.Linq;
using Kvq.Experimental;

namespace Kvq.Tests
{
    static class PlanTests
    {
        static double LeastLoss(PlanCosts[][] choices, int first, double bytes, double seconds)
        {
            if (bytes < 0 || seconds < 0) return double.PositiveInfinity;
            return first == choices.Length ? 0 : choices[first].Min(
                it => it.Loss + LeastLoss(choices, first + 1, bytes - it.Bytes, seconds - it.Seconds));
        }

        public static void A_solved_plan_loses_as_little_as_any()
        {
            var random = new Random(3);
            int solved = 0, refused = 0;
            using (var context = new Context())
            {
                for (int round = 0; round < 60; ++round)
                {
                    // Whole numbers, which sums keep exactly.
                    PlanCosts[][] choices = Enumerable.Range(0, 4).Select(i => Enumerable.Range(0, random.Next(2, 5))
                        .Select(j => new PlanCosts(random.Next(1, 31), random.Next(1, 31), random.Next(1, 31)))
                        .ToArray()).ToArray();
                    var problem = new PlanProblem
                    {
                        Choices = choices, MaxBytes = 20 + round, MaxSeconds = 45, Tolerance = 0,
                    };
                    double least = LeastLoss(choices, 0, problem.MaxBytes, problem.MaxSeconds);
                    if (double.IsInfinity(least))
                    {
                        Test.Refused(Status.Limit, "no plan", () => problem.Solve(context));
                        ++refused;
                        continue;
                    }
                    PlanSolution found = problem.Solve(context);
                    Test.Equal(least, found.Costs.Loss, "the loss");
                    Test.True(found.Bound <= least, "the bound");
                    Test.Equal(found.Chosen.Select((option, i) => choices[i][option].Bytes).Sum(), found.Costs.Bytes,
                        "the bytes");
                    ++solved;
                }
                Test.True(solved > 20 && refused > 5, solved + " plans and " + refused + " refusals");
                var wrong = new PlanProblem { Choices = new[] { new[] { new PlanCosts(1, double.NaN, 1) } } };
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

        public static void Groups_of_matrices_are_faster_together()
        {
            double[][] bytes = { new[] { 8.0, 4 }, new[] { 8.0, 4 } }, loss = { new[] { 0.0, 1 }, new[] { 0.0, 2 } };
            PlanGroup first = new PlanGroup(new[] { 0 }, new[] { 3.0, 2 }),
                second = new PlanGroup(new[] { 1 }, new[] { 3.0, 2 }),
                both = new PlanGroup(new[] { 0, 1 }, new[] { 4.0, 3 });
            using (var context = new Context())
            using (var fusion = new PlanFusion(context, bytes, loss, new[] { first, second, both }))
            {
                // Together with one scheme, or only the first matrix with the smaller one: the second saves as much
                // and loses more.
                Test.Equal("0:4 1:5 3:3", string.Join(" ", fusion.Groupings().Select(it => it.Loss + ":" + it.Seconds)),
                    "seconds by loss");
                Test.Equal("3 3 0 0", string.Join(" ", fusion.Groupings()[0].Groups), "groups");
                Test.Throws<ArgumentException>("groups[0] has member 1 of 1",
                    () => new PlanFusion(context, bytes.Take(1).ToArray(), loss.Take(1).ToArray(), new[] { second }));
                Test.Throws<ArgumentException>("loss has 1",
                    () => new PlanFusion(context, bytes, loss.Take(1).ToArray(), new[] { both }));
                Test.Refused(Status.Argument, "member 1", () => new PlanFusion(context, bytes, loss, new[] { first }));
            }
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
                Test.Refused(Status.Format, "empty", () => Plan.Load(context, ""));
                using (var empty = new Plan(context, new PlanContent()))
                    Test.Refused(Status.State, "nothing of caches", () => empty.Policy());
            }
        }
    }
}
