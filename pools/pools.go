// Package pools decides which address a Service gets.
//
// It is pure: no I/O, no clock, no Kubernetes type. Time is an argument.
package pools

// ServiceKey names a Service.
type ServiceKey struct {
	Namespace, Name string
}

// String returns namespace/name.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Name }
