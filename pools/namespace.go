package pools

import "reflect"

// SetNamespace sets the labels of a namespace, for the pools' namespace selectors.
func (a *Allocator) SetNamespace(name string, labels map[string]string) {
	a.setNamespace(name, labels, true)
}

// DeleteNamespace removes a namespace.
func (a *Allocator) DeleteNamespace(name string) {
	a.setNamespace(name, nil, false)
}

func (a *Allocator) setNamespace(name string, labels map[string]string, known bool) {
	old, had := a.nsLabel[name]
	if had == known && reflect.DeepEqual(old, labels) {
		return
	}
	if known {
		a.nsLabel[name] = labels
	} else {
		delete(a.nsLabel, name)
	}
	for _, s := range a.inNS[name] {
		a.mark(s)
		for _, h := range s.lease { // a holder that no longer drains lets others share
			a.loosen(a.units[h.Addr].pool)
		}
	}
}
