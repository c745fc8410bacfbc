package kvq

import "kvq/raw"

// Codebook is a set of CommVQ codebooks for the layers of one model. It is immutable; caches that use it share it.
type Codebook struct{ handle[raw.Codebook] }

// Centres are what the keys and values of one model are stored relative to. They are immutable; caches that use them
// share them.
type Centres struct{ handle[raw.Centres] }

// Router is a set of networks (MoQAE), one for each group of layers, that choose the format of every page. It is
// immutable; caches that use it share it.
type Router struct{ handle[raw.Router] }

// LoadCodebook reads codebooks from a file in memory. Every byte is checked.
func (x *Context) LoadCodebook(file []byte) (*Codebook, error) {
	it := new(Codebook)
	return load(x, it, &it.handle, raw.CodebookDestroy, "file", file, raw.CodebookLoad)
}

// LoadCentres reads centres from a file in memory. Every byte is checked.
func (x *Context) LoadCentres(file []byte) (*Centres, error) {
	it := new(Centres)
	return load(x, it, &it.handle, raw.CentresDestroy, "file", file, raw.CentresLoad)
}

// LoadRouter reads routers from a file in memory. Every byte is checked.
func (x *Context) LoadRouter(file []byte) (*Router, error) {
	it := new(Router)
	return load(x, it, &it.handle, raw.RouterDestroy, "file", file, raw.RouterLoad)
}

// Save writes the codebooks as a file. The same codebooks give the same bytes.
func (b *Codebook) Save() ([]byte, error) { return b.save(raw.CodebookSave) }

// Save writes the centres as a file. The same centres give the same bytes.
func (c *Centres) Save() ([]byte, error) { return c.save(raw.CentresSave) }

// Save writes the routers as a file. The same routers give the same bytes.
func (r *Router) Save() ([]byte, error) { return r.save(raw.RouterSave) }

// Describe tells what the codebooks are made for.
func (b *Codebook) Describe() (CodebookInfo, error) {
	return described(&b.handle, raw.CodebookDescribe, codebookInfoFrom)
}

// Describe tells what the centres are made for.
func (c *Centres) Describe() (CentresInfo, error) {
	return described(&c.handle, raw.CentresDescribe, centresInfoFrom)
}

// Describe tells what the routers are made for.
func (r *Router) Describe() (RouterInfo, error) {
	return described(&r.handle, raw.RouterDescribe, routerInfoFrom)
}

// DescribeLayer describes one layer.
func (b *Codebook) DescribeLayer(layer int) (CodebookLayerInfo, error) {
	return describedPart(&b.handle, "layer", layer, raw.CodebookDescribeLayer, codebookLayerInfoFrom)
}

// DescribeLayer describes one layer.
func (c *Centres) DescribeLayer(layer int) (CentresLayerInfo, error) {
	return describedPart(&c.handle, "layer", layer, raw.CentresDescribeLayer, centresLayerInfoFrom)
}

// DescribeGroup describes one group of layers.
func (r *Router) DescribeGroup(group int) (RouterGroupInfo, error) {
	return describedPart(&r.handle, "group", group, raw.RouterDescribeGroup, routerGroupInfoFrom)
}
