package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Router is a set of networks (MoQAE), one for each group of layers, that choose the format of every page. It is
// immutable; caches share it.
type Router struct{ handle[raw.Router] }

// LoadRouter reads routers from a file in memory. Every byte is checked.
func (x *Context) LoadRouter(file []byte) (*Router, error) {
	if len(file) == 0 {
		return nil, argument("file is empty")
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := new(Router)
	var made *raw.Router
	c := acquire()
	status := raw.RouterLoad(x.raw, bytesOf(file), uintptr(len(file)), &made, &c.err)
	return created(it, &it.handle, made, raw.RouterDestroy, c, status, x.fail)
}

// Save writes the routers as a file. The same routers give the same bytes.
func (b *Router) Save() ([]byte, error) {
	if err := b.lock(shared); err != nil {
		return nil, err
	}
	defer b.unlock(shared)
	return saved(b.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.RouterSave(b.raw, buffer, capacity, size, err)
	})
}

// Describe returns the shape of the routers and their training results.
func (b *Router) Describe() (RouterInfo, error) {
	return described(&b.handle, func(it *raw.RouterInfo, err *raw.Error) raw.Status {
		return raw.RouterDescribe(b.raw, it, err)
	}, routerInfoFrom)
}

// DescribeGroup describes one group of layers.
func (b *Router) DescribeGroup(group int) (RouterGroupInfo, error) {
	n, err := narrow("group", group)
	if err != nil {
		return RouterGroupInfo{}, err
	}
	return described(&b.handle, func(it *raw.RouterGroupInfo, err *raw.Error) raw.Status {
		return raw.RouterDescribeGroup(b.raw, n, it, err)
	}, routerGroupInfoFrom)
}
