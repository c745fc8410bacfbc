using System;
using System.Collections.Generic;
using System.Linq;
using Kvq.Experimental;

namespace Kvq.Tests
{
    static class PlanFusionTests
    {
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

        /// Matrices that read the same inputs.
        sealed class Members
        {
            internal double[][] Bytes, Loss;
            internal PlanGroup[] Groups;

            /// Some of all groups, each matrix in at least one of them.
            internal Members(Random random)
            {
                int n = random.Next(1, 5), schemes = random.Next(1, 3), grouped = 0;
                // Whole numbers, which sums keep exactly.
                Func<double[]> numbers = () =>
                    Enumerable.Range(0, schemes).Select(i => (double)random.Next(20)).ToArray();
                Bytes = Enumerable.Range(0, n).Select(i => numbers()).ToArray();
                Loss = Enumerable.Range(0, n).Select(i => numbers()).ToArray();
                var groups = new List<PlanGroup>();
                for (int mask = (1 << n) - 1; mask > 0; --mask)
                {
                    bool lastChance = (mask & (mask - 1)) == 0 && (grouped & mask) == 0;
                    if (random.Next(3) == 0 && !lastChance) continue;
                    groups.Add(new PlanGroup(Enumerable.Range(0, n).Where(i => (mask >> i & 1) == 1).ToArray(),
                        numbers().Select(it => random.Next(6) == 0 ? double.PositiveInfinity : it).ToArray()));
                    grouped |= mask;
                }
                Groups = groups.ToArray();
            }

            /// Of a grouping: a group's number and a scheme for each matrix. Null if a matrix is in another group than
            /// its group says, or a group has no time.
            internal PlanCosts? Costs(int[] groups, int[] schemes)
            {
                var sum = new PlanCosts();
                for (int member = 0; member < groups.Length; ++member)
                {
                    int group = groups[member], scheme = schemes[member];
                    int[] of = Groups[group].Members;
                    double seconds = Groups[group].Seconds[scheme];
                    if (!of.Contains(member) || double.IsInfinity(seconds) ||
                        of.Any(other => groups[other] != group || schemes[other] != scheme)) return null;
                    sum.Bytes += Bytes[member][scheme];
                    sum.Loss += Loss[member][scheme];
                    if (of[0] == member) sum.Seconds += seconds; // once for all of the group
                }
                return sum;
            }

            void Take(int member, int[] groups, int[] schemes, HashSet<PlanCosts> all)
            {
                if (member == groups.Length)
                {
                    PlanCosts? sum = Costs(groups, schemes);
                    if (sum.HasValue) all.Add(sum.Value);
                    return;
                }
                for (groups[member] = 0; groups[member] < Groups.Length; ++groups[member])
                    for (schemes[member] = 0; schemes[member] < Bytes[0].Length; ++schemes[member])
                        Take(member + 1, groups, schemes, all);
            }

            /// Costs that no other grouping is below in one and not above in any, of all groups and schemes for all.
            internal HashSet<PlanCosts> Unbeaten()
            {
                var all = new HashSet<PlanCosts>();
                Take(0, new int[Bytes.Length], new int[Bytes.Length], all);
                return new HashSet<PlanCosts>(all.Where(it => !all.Any(other => !other.Equals(it) &&
                    other.Bytes <= it.Bytes && other.Seconds <= it.Seconds && other.Loss <= it.Loss)));
            }
        }

        public static void Groupings_are_all_that_no_other_one_beats()
        {
            var random = new Random(5);
            int several = 0, none = 0;
            using (var context = new Context())
            {
                for (int round = 0; round < 150; ++round)
                {
                    var given = new Members(random);
                    HashSet<PlanCosts> expected = given.Unbeaten();
                    PlanGroupingInfo[] found;
                    using (var fusion = new PlanFusion(context, given.Bytes, given.Loss, given.Groups))
                        found = fusion.Groupings();
                    int[] masks = Array.ConvertAll(given.Groups, group => group.Members.Sum(i => 1 << i));
                    Test.True(found.Select(it => it.Loss).SequenceEqual(found.Select(it => it.Loss).OrderBy(it => it)),
                        "those with the smallest loss come first");
                    foreach (PlanGroupingInfo it in found)
                    {
                        int[] groups = it.Groups.Take(given.Bytes.Length)
                            .Select(mask => Array.IndexOf(masks, mask)).ToArray();
                        Test.True(groups.All(group => group >= 0), "groups are those that were given");
                        var told = new PlanCosts(it.Bytes, it.Seconds, it.Loss);
                        Test.Equal<PlanCosts?>(told, given.Costs(groups, it.Schemes), "the costs of a grouping");
                        Test.True(expected.Remove(told), "a grouping is beaten, or there twice");
                    }
                    Test.Equal(0, expected.Count, "groupings that are missing");
                    if (found.Length == 0) ++none;
                    if (found.Length > 2) ++several;
                }
            }
            Test.True(several >= 10 && none >= 3, several + " times several groupings, " + none + " times none");
        }
    }
}
