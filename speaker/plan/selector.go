package plan

import "slices"

// Selector is a label selector: every requirement must hold. One without requirements matches every node.
type Selector []Requirement

// Requirement is one condition on a label.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// Operator compares a label with values.
type Operator string

// The operators of a Kubernetes label selector.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Matches tells whether the labels satisfy every requirement. An unknown operator matches nothing.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		value, has := labels[r.Key]
		var ok bool
		switch r.Operator {
		case In:
			ok = has && slices.Contains(r.Values, value)
		case NotIn:
			ok = !has || !slices.Contains(r.Values, value)
		case Exists:
			ok = has
		case DoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// matches tells whether the advertisement covers an address of the pool on a node with these labels.
func (a Advertisement) matches(pool string, labels map[string]string) bool {
	if len(a.Pools) > 0 && !slices.Contains(a.Pools, pool) {
		return false
	}
	return len(a.Nodes) == 0 || slices.ContainsFunc(a.Nodes, func(s Selector) bool { return s.Matches(labels) })
}
