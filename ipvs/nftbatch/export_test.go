package nftbatch

// SetPlain is a kernel that knows no owners of tables.
func (o *Owned) SetPlain() { o.plain = true }
