package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Policy defines the formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are
// evicted. It is immutable.
type Policy struct{ handle[raw.Policy] }

// LoadPolicy reads a policy from YAML or from the short form, like "int4+hadamard"; see
// [raw.PolicyLoad].
func (x *Context) LoadPolicy(yaml string) (*Policy, error) {
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	bytes := []byte(yaml + "\x00") // one more, so that there is a first byte
	p := new(Policy)
	var made *raw.Policy
	c := acquire()
	status := raw.PolicyLoad(x.raw, &bytes[0], uintptr(len(yaml)), &made, &c.err)
	return created(p, &p.handle, made, raw.PolicyDestroy, c, status, x.fail)
}

// PolicyWithEviction copies a policy and sets its eviction method and budget.
func (x *Context) PolicyWithEviction(policy *Policy, method string, budget int) (*Policy, error) {
	name, err := terminated("method", method)
	if err != nil {
		return nil, err
	}
	tokens, err := narrow("budget", budget)
	if err != nil {
		return nil, err
	}
	if policy == nil {
		return nil, argument("policy is nil")
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	if err := policy.lock(shared); err != nil {
		return nil, err
	}
	defer policy.unlock(shared)
	p := new(Policy)
	var made *raw.Policy
	c := acquire()
	status := raw.PolicyWithEviction(x.raw, policy.raw, name, tokens, &made, &c.err)
	return created(p, &p.handle, made, raw.PolicyDestroy, c, status, x.fail)
}

// PolicyWithLayer copies a policy and sets the key and value formats of layers first to last; "" leaves a format
// unchanged.
func (x *Context) PolicyWithLayer(policy *Policy, first, last int, keys, values string) (*Policy, error) {
	var layers [2]int32
	if err := narrowAll([]number{{"first", first, &layers[0]}, {"last", last, &layers[1]}}); err != nil {
		return nil, err
	}
	k, err := optional("keys", keys)
	if err != nil {
		return nil, err
	}
	v, err := optional("values", values)
	if err != nil {
		return nil, err
	}
	if policy == nil {
		return nil, argument("policy is nil")
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	if err := policy.lock(shared); err != nil {
		return nil, err
	}
	defer policy.unlock(shared)
	p := new(Policy)
	var made *raw.Policy
	c := acquire()
	status := raw.PolicyWithLayer(x.raw, policy.raw, layers[0], layers[1], k, v, &made, &c.err)
	return created(p, &p.handle, made, raw.PolicyDestroy, c, status, x.fail)
}

// Save writes the policy as YAML that LoadPolicy reads.
func (p *Policy) Save() (string, error) {
	if err := p.lock(shared); err != nil {
		return "", err
	}
	defer p.unlock(shared)
	yaml, err := saved(p.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.PolicySave(p.raw, (*byte)(buffer), capacity, size, err)
	})
	return string(yaml), err
}

// Describe returns the eviction settings of the policy.
func (p *Policy) Describe() (PolicyInfo, error) {
	return described(&p.handle, func(it *raw.PolicyInfo, err *raw.Error) raw.Status {
		return raw.PolicyDescribe(p.raw, it, err)
	}, policyInfoFrom)
}
