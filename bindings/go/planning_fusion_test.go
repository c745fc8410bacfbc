//go:build kvq_experimental

package kvq_test

import (
	"math"
	"math/rand"
	"testing"

	"kvq"
)

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

// members are matrices that read the same inputs; groupings of them are lists of a group's number and a scheme for each.
type members struct {
	bytes, loss [][]float64
	groups      []kvq.PlanGroup
}

// costs of a grouping; false if a matrix is in another group than its group says, or a group has no time.
func (m *members) costs(groups, schemes []int) (sum kvq.PlanCosts, ok bool) {
	for member, group := range groups {
		of, found := m.groups[group].Members, false
		for _, other := range of {
			found = found || other == member
			if groups[other] != group || schemes[other] != schemes[member] {
				return sum, false
			}
		}
		seconds := m.groups[group].Seconds[schemes[member]]
		if !found || math.IsInf(seconds, 1) {
			return sum, false
		}
		sum.Bytes += m.bytes[member][schemes[member]]
		sum.Loss += m.loss[member][schemes[member]]
		if of[0] == member { // once for all of the group
			sum.Seconds += seconds
		}
	}
	return sum, true
}

// unbeaten are the costs that no other grouping is below in one and not above in any, of all groups and schemes for all.
func (m *members) unbeaten() map[kvq.PlanCosts]bool {
	n := len(m.bytes)
	groups, schemes := make([]int, n), make([]int, n)
	all, best := map[kvq.PlanCosts]bool{}, map[kvq.PlanCosts]bool{}
	var take func(member int)
	take = func(member int) {
		if member == n {
			if sum, ok := m.costs(groups, schemes); ok {
				all[sum] = true
			}
			return
		}
		for groups[member] = range m.groups {
			for schemes[member] = range m.bytes[member] {
				take(member + 1)
			}
		}
	}
	take(0)
	for it := range all {
		best[it] = true
		for other := range all {
			if other != it && other.Bytes <= it.Bytes && other.Seconds <= it.Seconds && other.Loss <= it.Loss {
				delete(best, it)
				break
			}
		}
	}
	return best
}

// randomMembers with some of all groups, each matrix in at least one of them.
func randomMembers(r *rand.Rand) *members {
	it, n, schemes := new(members), 1+r.Intn(4), 1+r.Intn(2)
	numbers := func() []float64 {
		row := make([]float64, schemes)
		for i := range row {
			row[i] = float64(r.Intn(20)) // whole ones, which sums keep exactly
		}
		return row
	}
	grouped := 0
	for i := 0; i < n; i++ {
		it.bytes, it.loss = append(it.bytes, numbers()), append(it.loss, numbers())
	}
	for mask := 1<<n - 1; mask > 0; mask-- {
		single := mask&(mask-1) == 0
		if r.Intn(3) == 0 && !(single && grouped&mask == 0) {
			continue
		}
		group := kvq.PlanGroup{Seconds: numbers()}
		for member := 0; member < n; member++ {
			if mask>>member&1 == 1 {
				group.Members = append(group.Members, member)
			}
		}
		for i := range group.Seconds {
			if r.Intn(4) == 0 {
				group.Seconds[i] = math.Inf(1)
			}
		}
		grouped |= mask
		it.groups = append(it.groups, group)
	}
	return it
}

func TestGroupingsAreAllThatNoOtherOneBeats(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := rand.New(rand.NewSource(5))
	several, none := 0, 0
	for round := 0; round < 60; round++ {
		given := randomMembers(r)
		expected := given.unbeaten()
		fusion := must(x.NewPlanFusion(given.bytes, given.loss, given.groups))(t)
		found := must(fusion.Groupings())(t)
		require(t, fusion.Close())
		number := map[int32]int{} // of the group with a mask
		for i, group := range given.groups {
			mask := int32(0)
			for _, member := range group.Members {
				mask |= 1 << member
			}
			number[mask] = i
		}
		last := math.Inf(-1)
		for _, it := range found {
			groups, schemes := make([]int, len(given.bytes)), make([]int, len(given.bytes))
			for i := range groups {
				at, ok := number[it.Groups[i]]
				if !ok {
					t.Fatalf("%+v has a group that was not given", it)
				}
				groups[i], schemes[i] = at, int(it.Schemes[i])
			}
			told := kvq.PlanCosts{Bytes: it.Bytes, Seconds: it.Seconds, Loss: it.Loss}
			if sum, ok := given.costs(groups, schemes); !ok || sum != told || !expected[told] || it.Loss < last {
				t.Fatalf("of %+v the grouping %+v costs %+v; best are %v", given, it, sum, expected)
			}
			delete(expected, told)
			last = it.Loss
		}
		if len(expected) > 0 {
			t.Fatalf("of %+v the groupings %+v lack %v", given, found, expected)
		}
		if len(found) == 0 {
			none++
		} else if len(found) > 2 {
			several++
		}
	}
	if several < 10 || none < 3 {
		t.Fatalf("%d times several groupings and %d times none are too few to show something", several, none)
	}
}
