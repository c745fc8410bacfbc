package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Router is a set of networks (MoQAE), one for each group of layers, that choose the format of every page. It is immutable; caches that use it share it.
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

// Describe tells what the routers are made for.
func (b *Router) Describe() (RouterInfo, error) {
	if err := b.lock(shared); err != nil {
		return RouterInfo{}, err
	}
	defer b.unlock(shared)
	var it raw.RouterInfo
	it.StructSize = uint32(unsafe.Sizeof(it))
	c := acquire()
	if err := c.end(raw.RouterDescribe(b.raw, &it, &c.err), b.fail); err != nil {
		return RouterInfo{}, err
	}
	return routerInfoFrom(&it), nil
}

// DescribeGroup tells of one group of layers.
func (b *Router) DescribeGroup(group int) (RouterGroupInfo, error) {
	n, err := narrow("group", group)
	if err != nil {
		return RouterGroupInfo{}, err
	}
	if err := b.lock(shared); err != nil {
		return RouterGroupInfo{}, err
	}
	defer b.unlock(shared)
	var it raw.RouterGroupInfo
	it.StructSize = uint32(unsafe.Sizeof(it))
	c := acquire()
	if err := c.end(raw.RouterDescribeGroup(b.raw, n, &it, &c.err), b.fail); err != nil {
		return RouterGroupInfo{}, err
	}
	return routerGroupInfoFrom(&it), nil
}
