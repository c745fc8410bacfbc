//go:build kvq_experimental

package kvq_test

import (
	"math"
	"math/rand"
	"strings"
	"testing"

	"kvq"
)

// leastLoss of all plans within the limits, infinity if there is none.
func leastLoss(choices [][]kvq.PlanCosts, bytes, seconds float64) float64 {
	if bytes < 0 || seconds < 0 {
		return math.Inf(1)
	}
	if len(choices) == 0 {
		return 0
	}
	least := math.Inf(1)
	for _, it := range choices[0] {
		least = math.Min(least, it.Loss+leastLoss(choices[1:], bytes-it.Bytes, seconds-it.Seconds))
	}
	return least
}

func TestASolvedPlanLosesAsLittleAsAny(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := rand.New(rand.NewSource(3))
	number := func() float64 { return float64(1 + r.Intn(30)) } // whole ones, which sums keep exactly
	solved, refused := 0, 0
	for round := 0; round < 60; round++ {
		choices := make([][]kvq.PlanCosts, 4)
		for i := range choices {
			for n := 2 + r.Intn(3); n > 0; n-- {
				choices[i] = append(choices[i], kvq.PlanCosts{Bytes: number(), Seconds: number(), Loss: number()})
			}
		}
		problem := kvq.NewPlanProblem(choices)
		problem.MaxBytes, problem.MaxSeconds, problem.Tolerance = float64(20+round), 45, 0
		least := leastLoss(choices, problem.MaxBytes, problem.MaxSeconds)
		solution, err := x.SolvePlan(problem)
		if math.IsInf(least, 1) {
			requireError(t, err, kvq.ErrLimit, "no plan")
			refused++
			continue
		}
		require(t, err)
		var sum kvq.PlanCosts
		for i, option := range solution.Chosen {
			it := choices[i][option]
			sum = kvq.PlanCosts{Bytes: sum.Bytes + it.Bytes, Seconds: sum.Seconds + it.Seconds, Loss: sum.Loss + it.Loss}
		}
		if solution.Loss != least || solution.PlanCosts != sum || solution.Bound > least || sum.Bytes > problem.MaxBytes {
			t.Fatalf("the plan is %+v, its options cost %+v, the best one loses %g", solution, sum, least)
		}
		solved++
	}
	if solved < 20 || refused < 5 {
		t.Fatalf("%d plans and %d refusals are too few to show something", solved, refused)
	}
	problem := kvq.NewPlanProblem([][]kvq.PlanCosts{{{Bytes: 3, Loss: 1}, {Bytes: 1, Loss: 2}}})
	problem.Goal, problem.MaxLoss = kvq.PlanBytes, 5
	if solution := must(x.SolvePlan(problem))(t); solution.Bytes != 1 {
		t.Fatalf("the smallest plan is %+v", solution)
	}
	problem.Choices[0][1].Bytes = math.NaN()
	_, err := x.SolvePlan(problem)
	requireError(t, err, kvq.ErrArgument, "bytes[1] is")
	_, err = x.SolvePlan(kvq.NewPlanProblem(nil))
	requireError(t, err, kvq.ErrArgument, "choices is empty")
	_, err = x.SolvePlan(nil)
	requireError(t, err, kvq.ErrArgument, "problem is nil")
}

func TestRatesTakeAllBitsAndMoreWhereMoreIsLost(t *testing.T) {
	weights, sensitivities := []float64{100, 300}, []float64{16, 3}
	bits, loss, err := kvq.PlanRates(weights, sensitivities, 0, 1200)
	require(t, err)
	expected := 16*math.Exp2(-2*bits[0]) + 3*math.Exp2(-2*bits[1])
	if math.Abs(100*bits[0]+300*bits[1]-1200) > 1e-6 || math.Abs(bits[0]-bits[1]-2) > 1e-9 || math.Abs(loss-expected) > 1e-12 {
		t.Fatalf("got %v bits and a loss of %g", bits, loss)
	}
	_, _, err = kvq.PlanRates(weights, sensitivities[:1], 0, 1200)
	requireError(t, err, kvq.ErrArgument, "sensitivities has 1")
	_, _, err = kvq.PlanRates(nil, nil, 0, 1200)
	requireError(t, err, kvq.ErrArgument, "n is 0")
}

func TestGroupsOfMatricesThatAreFasterTogether(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	bytes, loss := [][]float64{{8, 4}, {8, 4}}, [][]float64{{0, 1}, {0, 2}}
	groups := []kvq.PlanGroup{{Members: []int{0}, Seconds: []float64{3, 2}}, {Members: []int{1}, Seconds: []float64{3, 2}},
		{Members: []int{0, 1}, Seconds: []float64{4, 3}}}
	fusion := must(x.NewPlanFusion(bytes, loss, groups))(t)
	defer fusion.Close()
	seconds := map[float64]float64{}
	for _, it := range must(fusion.Groupings())(t) {
		seconds[it.Loss] = it.Seconds
		if it.Bytes != bytes[0][it.Schemes[0]]+bytes[1][it.Schemes[1]] || it.Loss != loss[0][it.Schemes[0]]+loss[1][it.Schemes[1]] {
			t.Fatalf("a grouping says %+v", it)
		}
	}
	// Together with one scheme, or only the first matrix with the smaller one: the second saves as much and loses more.
	if len(seconds) != 3 || seconds[0] != 4 || seconds[1] != 5 || seconds[3] != 3 {
		t.Fatalf("the groupings' seconds by loss are %v", seconds)
	}
	groups[2].Members[1] = 2
	_, err := x.NewPlanFusion(bytes, loss, groups)
	requireError(t, err, kvq.ErrArgument, "groups[2] has member 2")
	_, err = x.NewPlanFusion(bytes, loss[:1], groups)
	requireError(t, err, kvq.ErrArgument, "loss has 1")
	_, err = x.NewPlanFusion(bytes, loss, groups[:1])
	requireError(t, err, kvq.ErrArgument, "member 1")
}

func TestAPlanIsAFileAndACacheIsMadeFromIt(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	policy := must(x.LoadPolicy("int4"))(t)
	defer policy.Close()
	content := &kvq.PlanContent{Policy: policy, PlanCosts: kvq.PlanCosts{Bytes: 1000, Loss: 0.25}, Note: "by hand",
		Matrices: []kvq.PlanMatrixInfo{{Name: "up", Scheme: "tcx-3"}, {Name: "dówn", Scheme: "nuq-4"}}}
	plan := must(x.NewPlan(content))(t)
	defer plan.Close()
	yaml := must(plan.Save())(t)
	loaded := must(x.LoadPlan(yaml))(t)
	defer loaded.Close()
	if again := must(loaded.Save())(t); again != yaml {
		t.Fatalf("a plan saved again is %s\ninstead of %s", again, yaml)
	}
	if info := must(loaded.Describe())(t); info.Matrices != 2 || !info.HasPolicy || info.Bytes != 1000 || info.Loss != 0.25 ||
		info.Note != "by hand" {
		t.Fatalf("the plan says %+v", info)
	}
	for i, it := range must(loaded.Matrices())(t) {
		if it != content.Matrices[i] || must(loaded.Scheme(it.Name))(t) != it.Scheme {
			t.Fatalf("matrix %d is %+v", i, it)
		}
	}
	if scheme := must(loaded.Scheme("gate"))(t); scheme != "" {
		t.Fatalf("a matrix that the plan does not name has %s", scheme)
	}
	kept := must(loaded.Policy())(t)
	defer kept.Close()
	cache := must(x.NewCache(kvq.NewCacheOptions(1, 2, 1, 16), kept))(t)
	defer cache.Close()
	if layer := must(cache.DescribeLayer(0))(t); layer.Formats != "int4" {
		t.Fatalf("the cache's layer says %+v", layer)
	}

	_, err := x.LoadPlan(strings.Replace(yaml, "tcx-3", "tcx-9", 1))
	requireError(t, err, kvq.ErrFormat, "tcx-9", "line")
	_, err = x.LoadPlan("")
	requireError(t, err, kvq.ErrFormat, "empty")
	content.Matrices[1].Name = "up"
	_, err = x.NewPlan(content)
	requireError(t, err, kvq.ErrArgument, "twice")
	content.Matrices[1].Name = "a\x00b"
	_, err = x.NewPlan(content)
	requireError(t, err, kvq.ErrArgument, "zero byte")
	empty := must(x.NewPlan(&kvq.PlanContent{}))(t)
	defer empty.Close()
	_, err = empty.Policy()
	requireError(t, err, kvq.ErrState, "nothing of caches")
	require(t, plan.Close())
	_, err = plan.Save()
	requireError(t, err, kvq.ErrClosed)
}
