//go:build kvq_experimental

package raw

import (
	"testing"
	"unsafe"
)

// Experimental functions are called through the raw layer, with lists of strings in C memory.
func TestAPlanNamesMatrices(t *testing.T) {
	var err Error
	ErrorInit(&err)
	check := func(status Status) {
		t.Helper()
		if status != OK {
			t.Fatalf("%v: %s", status, unsafe.Slice((*byte)(unsafe.Pointer(&err.Message[0])), 80))
		}
	}
	var x *Context
	check(ContextCreate(nil, &x, &err))
	defer ContextDestroy(x)
	memory := Allocate(64)
	defer Free(memory)
	bytes, lists := unsafe.Slice((*byte)(memory), 64), unsafe.Slice((**byte)(memory), 8)
	copy(bytes[32:], "up\x00tcx-3\x00")
	lists[0], lists[1] = &bytes[32], &bytes[35]
	var content PlanContent
	PlanContentInit(&content)
	content.NMatrices, content.Names, content.Schemes = 1, &lists[0], &lists[1]
	var plan *Plan
	check(PlanCreate(x, &content, &plan, &err))
	defer PlanDestroy(plan)
	scheme := PlanScheme(plan, &[]byte("up\x00")[0])
	if scheme == nil || string(unsafe.Slice(scheme, 5)) != "tcx-3" {
		t.Fatal("the plan has lost the scheme of its matrix")
	}
	var loss float64
	bits := make([]float64, 2)
	check(PlanRates(2, &[]float64{100, 300}[0], &[]float64{16, 3}[0], 0, 1200, &bits[0], &loss, &err))
	if total := 100*bits[0] + 300*bits[1]; total < 1199 || total > 1201 {
		t.Fatalf("rates take %g bits of 1200", total)
	}
}
