package kvq

import "kvq/raw"

// Policy defines the formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are
// evicted. It is immutable.
type Policy struct{ handle[raw.Policy] }

// LoadPolicy reads a policy from YAML or from the short form, like "int4+hadamard"; see
// [raw.PolicyLoad].
func (x *Context) LoadPolicy(yaml string) (*Policy, error) {
	bytes := []byte(yaml + "\x00") // one more, so that there is a first byte
	p := new(Policy)
	return create(x, p, &p.handle, raw.PolicyDestroy, func(made **raw.Policy, err *raw.Error) raw.Status {
		return raw.PolicyLoad(x.raw, &bytes[0], uintptr(len(yaml)), made, err)
	})
}

// from runs a call that creates a policy from another one.
func (x *Context) from(policy *Policy, by func(from *raw.Policy, made **raw.Policy, err *raw.Error) raw.Status) (*Policy, error) {
	if policy == nil {
		return nil, argument("policy is nil")
	}
	p := new(Policy)
	return create(x, p, &p.handle, raw.PolicyDestroy, func(made **raw.Policy, err *raw.Error) raw.Status {
		return by(policy.raw, made, err)
	}, policy)
}

// PolicyWithEviction copies a policy and sets its eviction method and budget.
func (x *Context) PolicyWithEviction(policy *Policy, method string, budget int) (*Policy, error) {
	var tokens int32
	name, err := terminated("method", method)
	if err := firstOf(err, narrow("budget", budget, &tokens)); err != nil {
		return nil, err
	}
	return x.from(policy, func(from *raw.Policy, made **raw.Policy, err *raw.Error) raw.Status {
		return raw.PolicyWithEviction(x.raw, from, name, tokens, made, err)
	})
}

// PolicyWithLayer copies a policy and sets the key and value formats of layers first to last; "" leaves a format
// unchanged.
func (x *Context) PolicyWithLayer(policy *Policy, first, last int, keys, values string) (*Policy, error) {
	var layers [2]int32
	k, keysErr := optional("keys", keys)
	v, valuesErr := optional("values", values)
	if err := firstOf(narrow("first", first, &layers[0]), narrow("last", last, &layers[1]), keysErr, valuesErr); err != nil {
		return nil, err
	}
	return x.from(policy, func(from *raw.Policy, made **raw.Policy, err *raw.Error) raw.Status {
		return raw.PolicyWithLayer(x.raw, from, layers[0], layers[1], k, v, made, err)
	})
}
