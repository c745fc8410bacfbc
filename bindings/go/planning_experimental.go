//go:build kvq_experimental

package kvq

import (
	"unsafe"

	"kvq/raw"
)

// PlanCosts are what an option of a choice costs, and a plan all in all.
//
// Experimental: may change in a minor version.
type PlanCosts struct{ Bytes, Seconds, Loss float64 }

// PlanProblem is choices, of each of which a plan takes one option: the scheme of a matrix, the format of a layer's keys
// and so on. [NewPlanProblem] fills in defaults. Fields are those of [raw.PlanProblem].
//
// Experimental: may change in a minor version.
type PlanProblem struct {
	Goal                          PlanGoal
	Choices                       [][]PlanCosts
	MaxBytes, MaxSeconds, MaxLoss float64
	Tolerance                     float64
}

// NewPlanProblem asks for the least loss, without limits.
func NewPlanProblem(choices [][]PlanCosts) *PlanProblem {
	var it raw.PlanProblem
	raw.PlanProblemInit(&it)
	return &PlanProblem{Goal: it.Goal, Choices: choices, MaxBytes: it.MaxBytes, MaxSeconds: it.MaxSeconds,
		MaxLoss: it.MaxLoss, Tolerance: it.Tolerance}
}

// PlanSolution is a plan: of every choice the number of its option, from 0, and what they cost together. No plan within
// the limits has a smaller goal than Bound.
//
// Experimental: may change in a minor version.
type PlanSolution struct {
	Chosen []int
	PlanCosts
	Bound float64
}

// SolvePlan takes one option of every choice, so that the goal is as small as possible and the limits hold. [ErrLimit]:
// no plan keeps them; the message says what is missing.
func (x *Context) SolvePlan(problem *PlanProblem) (*PlanSolution, error) {
	if problem == nil {
		return nil, argument("problem is nil")
	}
	if len(problem.Choices) == 0 {
		return nil, argument("choices is empty")
	}
	var counts []int32
	var bytes, seconds, loss []float64
	for _, choice := range problem.Choices {
		counts = append(counts, int32(len(choice)))
		for _, option := range choice {
			bytes = append(bytes, option.Bytes)
			seconds = append(seconds, option.Seconds)
			loss = append(loss, option.Loss)
		}
	}
	var to raw.PlanProblem
	raw.PlanProblemInit(&to)
	n, err := narrow("choices", len(counts))
	if err != nil {
		return nil, err
	}
	to.Goal, to.NChoices, to.OptionCounts = problem.Goal, n, first(counts)
	to.Bytes, to.Seconds, to.Loss = first(bytes), first(seconds), first(loss)
	to.MaxBytes, to.MaxSeconds, to.MaxLoss = problem.MaxBytes, problem.MaxSeconds, problem.MaxLoss
	to.Tolerance = problem.Tolerance
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	chosen := make([]int32, n)
	solution, err := told(x.fail, func(costs *raw.PlanCosts, err *raw.Error) raw.Status {
		return raw.PlanSolve(x.raw, &to, &chosen[0], n, costs, err)
	}, func(it *raw.PlanCosts) *PlanSolution {
		return &PlanSolution{PlanCosts: PlanCosts{it.Bytes, it.Seconds, it.Loss}, Bound: it.Bound}
	})
	if err != nil {
		return nil, err
	}
	for _, option := range chosen {
		solution.Chosen = append(solution.Chosen, int(option))
	}
	return solution, nil
}

// PlanRates are the bits of a weight that each matrix would get if codes were as good as codes of Gaussian numbers can
// be, and what is lost then, which no plan goes below; see [raw.PlanRates]. Matrices have so many weights each, and lose
// so much at a relative squared error of 1.
//
// Experimental: may change in a minor version.
func PlanRates(weights, sensitivities []float64, leastBits, totalBits float64) (bits []float64, loss float64, err error) {
	if err := slice("sensitivities", len(sensitivities), len(weights)); err != nil {
		return nil, 0, err
	}
	n, err := narrow("weights", len(weights))
	if err != nil {
		return nil, 0, err
	}
	bits = make([]float64, n)
	c := acquire()
	status := raw.PlanRates(n, first(weights), first(sensitivities), leastBits, totalBits, first(bits), &loss, &c.err)
	if err := c.end(status, nil); err != nil {
		return nil, 0, err
	}
	return bits, loss, nil
}

// PlanFusion is all ways to group matrices that read the same inputs, for engines whose kernels fuse only equal schemes.
// It is immutable.
//
// Experimental: may change in a minor version.
type PlanFusion struct{ handle[raw.PlanFusion] }

// PlanGroup is matrices that may be multiplied together, by their numbers, and the seconds that this takes with each
// scheme; infinity: not possible.
//
// Experimental: may change in a minor version.
type PlanGroup struct {
	Members []int
	Seconds []float64
}

// NewPlanFusion finds the groupings that no other one beats. bytes and loss are of each matrix with each scheme; every
// matrix must be in some group.
func (x *Context) NewPlanFusion(bytes, loss [][]float64, groups []PlanGroup) (*PlanFusion, error) {
	var to raw.PlanFusionOptions
	raw.PlanFusionOptionsInit(&to)
	schemes := 0
	if len(bytes) > 0 {
		schemes = len(bytes[0])
	}
	if err := narrowAll([]number{{"members", len(bytes), &to.NMembers}, {"schemes", schemes, &to.NSchemes},
		{"groups", len(groups), &to.NGroups}}); err != nil {
		return nil, err
	}
	if err := slice("loss", len(loss), len(bytes)); err != nil {
		return nil, err
	}
	masks, seconds := make([]int32, len(groups)), make([][]float64, len(groups))
	for i, group := range groups {
		seconds[i] = group.Seconds
		for _, member := range group.Members {
			if member < 0 || member >= len(bytes) || member >= raw.MaxFused {
				return nil, argument("groups[%d] has member %d of %d", i, member, len(bytes))
			}
			masks[i] |= 1 << member
		}
	}
	to.Groups = first(masks)
	for _, table := range []struct {
		name string
		rows [][]float64
		to   **float64
	}{{"bytes", bytes, &to.Bytes}, {"loss", loss, &to.Loss}, {"seconds", seconds, &to.Seconds}} {
		var all []float64
		for _, row := range table.rows {
			if err := slice(table.name, len(row), schemes); err != nil {
				return nil, err
			}
			all = append(all, row...)
		}
		*table.to = first(all)
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := new(PlanFusion)
	var made *raw.PlanFusion
	c := acquire()
	status := raw.PlanFusionCreate(x.raw, &to, &made, &c.err)
	return created(it, &it.handle, made, raw.PlanFusionDestroy, c, status, x.fail)
}

// Groupings are those that no other one beats, the ones with the smallest loss first: the options of one choice.
func (f *PlanFusion) Groupings() ([]PlanGroupingInfo, error) {
	info, err := described(&f.handle, func(it *raw.PlanFusionInfo, err *raw.Error) raw.Status {
		return raw.PlanFusionDescribe(f.raw, it, err)
	}, planFusionInfoFrom)
	if err != nil {
		return nil, err
	}
	groupings := make([]PlanGroupingInfo, info.Groupings)
	for i := range groupings {
		groupings[i], err = described(&f.handle, func(it *raw.PlanGroupingInfo, err *raw.Error) raw.Status {
			return raw.PlanFusionDescribeGrouping(f.raw, int32(i), it, err)
		}, planGroupingInfoFrom)
		if err != nil {
			return nil, err
		}
	}
	return groupings, nil
}

// Plan is what a planner decided, as a file: the scheme of each matrix, and how caches store pages. It is immutable.
//
// Experimental: may change in a minor version.
type Plan struct{ handle[raw.Plan] }

// PlanContent is what a plan is made of; the costs are what is expected of it.
//
// Experimental: may change in a minor version.
type PlanContent struct {
	Matrices []PlanMatrixInfo
	Policy   *Policy // nil: the plan says nothing of caches
	PlanCosts
	Note string
}

// newStrings is a list of strings in memory of C's, which [raw.Free] ends: cgo lets no list of Go's strings pass.
func newStrings(name string, n int, at func(int) string) (unsafe.Pointer, error) {
	size := n * int(unsafe.Sizeof(uintptr(0)))
	begin := size
	for i := 0; i < n; i++ {
		if _, err := terminated(name, at(i)); err != nil {
			return nil, err
		}
		size += len(at(i)) + 1
	}
	memory := raw.Allocate(uintptr(size) + 1)
	if memory == nil {
		return nil, &Error{Status: ErrMemory, Message: name + " cannot be allocated"}
	}
	list := unsafe.Slice((**byte)(memory), n)
	bytes := unsafe.Slice((*byte)(memory), size)
	for i := range list {
		list[i] = &bytes[begin]
		begin += copy(bytes[begin:], at(i))
		bytes[begin] = 0
		begin++
	}
	return memory, nil
}

// NewPlan makes a plan.
func (x *Context) NewPlan(content *PlanContent) (*Plan, error) {
	if content == nil {
		return nil, argument("content is nil")
	}
	var to raw.PlanContent
	raw.PlanContentInit(&to)
	var err error
	if to.NMatrices, err = narrow("matrices", len(content.Matrices)); err != nil {
		return nil, err
	}
	if to.Note, err = optional("note", content.Note); err != nil {
		return nil, err
	}
	names, err := newStrings("name", len(content.Matrices), func(i int) string { return content.Matrices[i].Name })
	if err != nil {
		return nil, err
	}
	defer raw.Free(names)
	schemes, err := newStrings("scheme", len(content.Matrices), func(i int) string { return content.Matrices[i].Scheme })
	if err != nil {
		return nil, err
	}
	defer raw.Free(schemes)
	to.Names, to.Schemes = (**byte)(names), (**byte)(schemes)
	to.Bytes, to.Seconds, to.Loss = content.Bytes, content.Seconds, content.Loss
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	if content.Policy != nil {
		if err := content.Policy.lock(shared); err != nil {
			return nil, err
		}
		defer content.Policy.unlock(shared)
		to.Policy = content.Policy.raw
	}
	it := new(Plan)
	var made *raw.Plan
	c := acquire()
	status := raw.PlanCreate(x.raw, &to, &made, &c.err)
	return created(it, &it.handle, made, raw.PlanDestroy, c, status, x.fail)
}

// LoadPlan reads what Save or `kvq plan` wrote.
func (x *Context) LoadPlan(yaml string) (*Plan, error) {
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	bytes := []byte(yaml + "\x00") // one more, so that there is a first
	it := new(Plan)
	var made *raw.Plan
	c := acquire()
	status := raw.PlanLoad(x.raw, &bytes[0], uintptr(len(yaml)), &made, &c.err)
	return created(it, &it.handle, made, raw.PlanDestroy, c, status, x.fail)
}

// Save writes the plan as YAML, which `kvq quantize --plan` reads too. The same plan gives the same text.
func (p *Plan) Save() (string, error) {
	if err := p.lock(shared); err != nil {
		return "", err
	}
	defer p.unlock(shared)
	yaml, err := saved(p.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.PlanSave(p.raw, (*byte)(buffer), capacity, size, err)
	})
	return string(yaml), err
}

// Describe tells what is in the plan.
func (p *Plan) Describe() (PlanInfo, error) {
	return described(&p.handle, func(it *raw.PlanInfo, err *raw.Error) raw.Status {
		return raw.PlanDescribe(p.raw, it, err)
	}, planInfoFrom)
}

// Matrices are those that the plan names, in its order.
func (p *Plan) Matrices() ([]PlanMatrixInfo, error) {
	info, err := p.Describe()
	if err != nil {
		return nil, err
	}
	matrices := make([]PlanMatrixInfo, info.Matrices)
	for i := range matrices {
		matrices[i], err = described(&p.handle, func(it *raw.PlanMatrixInfo, err *raw.Error) raw.Status {
			return raw.PlanDescribeMatrix(p.raw, int32(i), it, err)
		}, planMatrixInfoFrom)
		if err != nil {
			return nil, err
		}
	}
	return matrices, nil
}

// Scheme of a matrix; "" if the plan does not name it.
func (p *Plan) Scheme(name string) (string, error) {
	bytes, err := terminated("name", name)
	if err != nil {
		return "", err
	}
	if err := p.lock(shared); err != nil {
		return "", err
	}
	defer p.unlock(shared)
	return text(raw.PlanScheme(p.raw, bytes)), nil
}

// Policy of caches. [ErrState]: the plan says nothing of them.
func (p *Plan) Policy() (*Policy, error) {
	if err := p.lock(shared); err != nil {
		return nil, err
	}
	defer p.unlock(shared)
	it := new(Policy)
	var made *raw.Policy
	c := acquire()
	status := raw.PlanPolicy(p.raw, &made, &c.err)
	return created(it, &it.handle, made, raw.PolicyDestroy, c, status, p.fail)
}
