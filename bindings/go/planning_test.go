//go:build kvq_experimental

package kvq_test

import (
	"math"
	"math/rand"
	"strings"
	"testing"
	"unsafe"

	"kvq"
	"kvq/raw"
)

// goalOf is the cost that a plan makes as small as possible.
func goalOf(goal kvq.PlanGoal, it kvq.PlanCosts) float64 {
	switch goal {
	case kvq.PlanBytes:
		return it.Bytes
	case kvq.PlanSeconds:
		return it.Seconds
	}
	return it.Loss
}

func sumOf(a, b kvq.PlanCosts) kvq.PlanCosts {
	return kvq.PlanCosts{Bytes: a.Bytes + b.Bytes, Seconds: a.Seconds + b.Seconds, Loss: a.Loss + b.Loss}
}

func within(it kvq.PlanCosts, problem *kvq.PlanProblem) bool {
	return it.Bytes <= problem.MaxBytes && it.Seconds <= problem.MaxSeconds && it.Loss <= problem.MaxLoss
}

// leastGoal of all plans within the limits, which begin with what is taken already; infinity if there is none.
func leastGoal(problem *kvq.PlanProblem, choices [][]kvq.PlanCosts, taken kvq.PlanCosts) float64 {
	if len(choices) == 0 {
		if within(taken, problem) {
			return goalOf(problem.Goal, taken)
		}
		return math.Inf(1)
	}
	least := math.Inf(1)
	for _, it := range choices[0] {
		least = math.Min(least, leastGoal(problem, choices[1:], sumOf(taken, it)))
	}
	return least
}

func TestNoPlanWithinTheLimitsBeatsASolvedOne(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := rand.New(rand.NewSource(3))
	number := func() float64 { return float64(1 + r.Intn(30)) } // whole ones, which sums keep exactly
	limit := func() float64 {
		if r.Intn(3) == 0 {
			return math.Inf(1)
		}
		return float64(20 + r.Intn(60))
	}
	solved, refused := map[kvq.PlanGoal]int{}, map[kvq.PlanGoal]int{}
	goals := []kvq.PlanGoal{kvq.PlanBytes, kvq.PlanSeconds, kvq.PlanLoss}
	for round := 0; round < 240; round++ {
		choices := make([][]kvq.PlanCosts, 1+r.Intn(5))
		for i := range choices {
			for n := 1 + r.Intn(4); n > 0; n-- {
				choices[i] = append(choices[i], kvq.PlanCosts{Bytes: number(), Seconds: number(), Loss: number()})
			}
		}
		problem := kvq.NewPlanProblem(choices)
		problem.Goal, problem.Tolerance = goals[round%3], 0
		problem.MaxBytes, problem.MaxSeconds, problem.MaxLoss = limit(), limit(), limit()
		least := leastGoal(problem, choices, kvq.PlanCosts{})
		solution, err := x.SolvePlan(problem)
		if math.IsInf(least, 1) {
			requireError(t, err, kvq.ErrLimit, "no plan")
			refused[problem.Goal]++
			continue
		}
		require(t, err)
		var sum kvq.PlanCosts
		for i, option := range solution.Chosen {
			sum = sumOf(sum, choices[i][option])
		}
		if len(solution.Chosen) != len(choices) || goalOf(problem.Goal, sum) != least || solution.PlanCosts != sum ||
			solution.Bound > least || !within(sum, problem) {
			t.Fatalf("the plan for %+v is %+v, its options cost %+v, the best one's goal is %g", problem, solution, sum, least)
		}
		solved[problem.Goal]++
	}
	for _, goal := range goals {
		if solved[goal] < 20 || refused[goal] < 5 {
			t.Fatalf("%v plans and %v refusals are too few to show something", solved, refused)
		}
	}
	problem := kvq.NewPlanProblem([][]kvq.PlanCosts{{{Bytes: 3}, {Bytes: 2}}, {{Bytes: 4}}})
	problem.MaxBytes = 5
	_, err := x.SolvePlan(problem)
	requireError(t, err, kvq.ErrLimit, "max_bytes is 5", "less than 6")
	problem.Choices[0][1].Bytes = math.NaN()
	_, err = x.SolvePlan(problem)
	requireError(t, err, kvq.ErrArgument, "bytes[1] is")
	problem.Choices[0] = nil
	_, err = x.SolvePlan(problem)
	requireError(t, err, kvq.ErrArgument, "option_counts[0] is 0")
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

func TestNoBitsThatMoveToAnotherMatrixMakeRatesLoseLess(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	atLeast, above := 0, 0
	for round := 0; round < 50; round++ {
		n, leastBits := 2+r.Intn(6), 2*r.Float64()
		weights, sensitivities, total := make([]float64, n), make([]float64, n), 0.0
		for i := range weights {
			weights[i], sensitivities[i] = float64(1+r.Intn(1000)), math.Exp2(12*r.Float64())
			total += weights[i] * (leastBits + r.Float64())
		}
		sensitivities[r.Intn(n)] = 0
		bits, loss, err := kvq.PlanRates(weights, sensitivities, leastBits, total)
		require(t, err)
		lost := func(i int, bits float64) float64 { return sensitivities[i] * math.Exp2(-2*bits) }
		taken, sum := 0.0, 0.0
		for i := range bits {
			taken, sum = taken+weights[i]*bits[i], sum+lost(i, bits[i])
		}
		if math.Abs(taken-total) > 1e-9*total || math.Abs(sum-loss) > 1e-9*sum {
			t.Fatalf("rates %v take %g of %g bits and lose %g, not %g", bits, taken, total, sum, loss)
		}
		// The loss is convex: what cannot be bettered by a little is the best there is.
		const moved = 1e-3
		for i := range bits {
			if bits[i] < leastBits-1e-12 {
				t.Fatalf("matrix %d has %g bits, at least %g were asked for", i, bits[i], leastBits)
			}
			less := bits[i] - moved/weights[i]
			if less < leastBits {
				atLeast++
				continue
			}
			above++
			for j := range bits {
				change := lost(i, less) - lost(i, bits[i]) + lost(j, bits[j]+moved/weights[j]) - lost(j, bits[j])
				if i != j && change < -1e-12*sum {
					t.Fatalf("%g bits that move from matrix %d to %d change the loss %g by %g", moved, i, j, sum, change)
				}
			}
		}
	}
	if atLeast < 20 || above < 20 {
		t.Fatalf("%d matrices with the least bits and %d with more are too few to show something", atLeast, above)
	}
}

func TestListsOfStringsBeginWithZeros(t *testing.T) {
	const size = 4096
	for round := 0; round < 20; round++ { // C gives the same memory again
		memory := raw.Allocate(size)
		for i, it := range unsafe.Slice((*byte)(memory), size) {
			if it != 0 {
				t.Fatalf("byte %d of round %d is %d", i, round, it)
			}
		}
		for i := range unsafe.Slice((*byte)(memory), size) {
			unsafe.Slice((*byte)(memory), size)[i] = 0xc0
		}
		raw.Free(memory)
	}
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
	_, err = x.LoadPlan(strings.Replace(yaml, "version: 1", "version: 2", 1))
	requireError(t, err, kvq.ErrFormat, "version", "line 1")
	_, err = x.LoadPlan(yaml[:len(yaml)/2] + "\x00" + yaml[len(yaml)/2:])
	requireError(t, err, kvq.ErrFormat)
	for end := range yaml { // a part of it may be a plan, of less
		part, err := x.LoadPlan(yaml[:end])
		if err != nil {
			requireError(t, err, kvq.ErrFormat)
			continue
		}
		if must(part.Describe())(t).Matrices > 2 || len(must(part.Save())(t)) > len(yaml) {
			t.Fatalf("the first %d bytes hold more than the plan", end)
		}
		require(t, part.Close())
	}
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
