package pools

import "reflect"

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
	for key := range a.inNS[name] {
		a.wakes.look[key] = struct{}{}
	}
}
