// Package advertisement parses what an L2Advertisement or a BGPAdvertisement selects: pools, Services and nodes.
//
// An empty list of selectors selects everything. An invalid selector selects nothing, and is an error that names its
// field. A Selection also reports what an operator probably did not mean: a selector that is in its list twice, and a
// pool that does not exist.
package advertisement

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Selection is a parsed L2Advertisement.
type Selection struct {
	pools         []string
	poolSelectors []pools.Selector // if pools is empty too: all
	Services      []pools.Selector // empty: all
	Nodes         []pools.Selector // empty: all
	preferred     []preference
	Interfaces    []string // empty: those in the subnet of an address
	// Repeated describes the selectors that are in a list twice.
	Repeated []string
}

// preference gives the nodes that match a weight.
type preference struct {
	weight   int
	selector pools.Selector
}

// Reader parses the selectors of a spec and collects the errors.
type Reader struct {
	bad      []error
	Repeated []string
}

// OfL2 parses the object. An invalid selector matches nothing and is reported, with its field.
func OfL2(obj *v1alpha1.L2Advertisement) (Selection, error) {
	spec := &obj.Spec
	var read Reader
	a := Selection{
		pools:         spec.IPAddressPools,
		poolSelectors: read.All("ipAddressPoolSelectors", spec.IPAddressPoolSelectors),
		Services:      read.All("serviceSelectors", spec.ServiceSelectors),
		Nodes:         read.All("nodeSelectors", spec.NodeSelectors),
		Interfaces:    spec.Interfaces,
	}
	for i := range spec.PreferredNodeSelectors {
		p := &spec.PreferredNodeSelectors[i]
		read.Repeated = append(read.Repeated, repeatedValues(fmt.Sprintf("preferredNodeSelectors[%d].preference", i), &p.Preference)...)
		a.preferred = append(a.preferred, preference{
			int(p.Weight), read.one(fmt.Sprintf("preferredNodeSelectors[%d].preference", i), &p.Preference),
		})
	}
	a.Repeated = read.Repeated
	return a, read.Err()
}

func (r *Reader) one(field string, in *metav1.LabelSelector) pools.Selector {
	s, err := v1alpha1.SelectorOf(in)
	if err != nil {
		r.bad = append(r.bad, fmt.Errorf("spec.%s: %w", field, err))
	}
	return s
}

func (r *Reader) All(field string, in []metav1.LabelSelector) (out []pools.Selector) {
	for i := range in {
		out = append(out, r.one(fmt.Sprintf("%s[%d]", field, i), &in[i]))
	}
	r.Repeated = append(r.Repeated, Repeats(field, in)...)
	return out
}

// Repeats describes the selectors that occur earlier in the same list, and the values that are in an expression twice:
// probably another one was meant.
func Repeats(field string, in []metav1.LabelSelector) (out []string) {
	first := map[string]int{}
	for i := range in {
		out = append(out, repeatedValues(fmt.Sprintf("%s[%d]", field, i), &in[i])...)
		text := metav1.FormatLabelSelector(&in[i]) // sorted
		if at, is := first[text]; is && text != "<error>" {
			out = append(out, fmt.Sprintf("spec.%s[%d] is the same as [%d]: remove one of them, or correct it", field, i, at))
			continue
		}
		first[text] = i
	}
	return out
}

func repeatedValues(field string, s *metav1.LabelSelector) (out []string) {
	for i, e := range s.MatchExpressions {
		for j, value := range e.Values {
			if slices.Index(e.Values, value) < j {
				out = append(out, fmt.Sprintf("spec.%s.matchExpressions[%d].values has %s twice: remove one of them, or correct it", field, i, value))
			}
		}
	}
	return out
}

func (r *Reader) Err() error { return errors.Join(r.bad...) }

// Missing describes the selected pools that do not exist; labels are those of all pools. An invalid selector is
// reported separately.
func (a *Selection) Missing(selectors []metav1.LabelSelector, labels map[string]map[string]string) string {
	var problems []string
	var names []condition.Name
	for _, name := range a.pools {
		if _, is := labels[name]; !is {
			names = append(names, condition.Name(name))
		}
	}
	if len(names) > 0 {
		problems = append(problems, fmt.Sprintf("spec.ipAddressPools: there is no IPAddressPool %s: create it, or remove it from the list", condition.Some(names)))
	}
	for i, s := range a.poolSelectors {
		if _, err := v1alpha1.SelectorOf(&selectors[i]); err != nil {
			continue
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(labels)), s.Matches) {
			problems = append(problems, fmt.Sprintf("spec.ipAddressPoolSelectors[%d]: no IPAddressPool matches: label one, or remove the selector", i))
		}
	}
	if len(problems) == 0 {
		return ""
	}
	for name := range labels {
		if a.SelectsPool(name, labels[name]) {
			return strings.Join(problems, "; ") + ". The advertisement is in use for the other pools"
		}
	}
	return strings.Join(problems, "; ") + ". The advertisement selects no addresses until then"
}

// MatchAny reports whether a selector matches; an empty list matches everything.
func MatchAny(selectors []pools.Selector, labels map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s pools.Selector) bool { return s.Matches(labels) })
}

// SelectsPool reports whether the advertisement selects the pool.
func (a *Selection) SelectsPool(pool string, labels map[string]string) bool {
	if len(a.pools) == 0 && len(a.poolSelectors) == 0 || slices.Contains(a.pools, pool) {
		return true
	}
	return len(a.poolSelectors) > 0 && MatchAny(a.poolSelectors, labels)
}

// SelectsService reports whether the advertisement selects a Service with the labels.
func (a *Selection) SelectsService(service map[string]string) bool {
	return MatchAny(a.Services, service)
}

// SelectsNode reports whether the advertisement selects the node.
func (a *Selection) SelectsNode(n *v1.Node) bool { return MatchAny(a.Nodes, n.Labels) }

// Weight is the preference of the node: the sum of the matching weights.
func (a *Selection) Weight(n *v1.Node) int {
	sum := 0
	for _, p := range a.preferred {
		if p.selector.Matches(n.Labels) {
			sum += p.weight
		}
	}
	return sum
}

// OfBGP parses the selectors of an object, as advertisementOf does.
func OfBGP(obj *v1alpha1.BGPAdvertisement) (Selection, error) {
	var read Reader
	a := Selection{
		pools:         obj.Spec.IPAddressPools,
		poolSelectors: read.All("ipAddressPoolSelectors", obj.Spec.IPAddressPoolSelectors),
		Services:      read.All("serviceSelectors", obj.Spec.ServiceSelectors),
		Nodes:         read.All("nodeSelectors", obj.Spec.NodeSelectors),
	}
	a.Repeated = read.Repeated
	return a, read.Err()
}
