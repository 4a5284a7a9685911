// Package metallb converts MetalLB's objects, and the Services that it serves, to IronLB's. It is pure: no clock, no
// I/O. Every field of every object gets a row with its outcome: a field without a rule is refused, not dropped.
package metallb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Group is the API group of MetalLB's kinds, Namespace the one that its manifests and documentation use.
const (
	Group     = "metallb.io"
	Namespace = "metallb-system"
)

// Kinds returns those that are converted.
func Kinds() []string { return slices.Sorted(maps.Keys(rules)) }

// Versions of the group, by kind, the preferred one first.
func Versions(kind string) []string {
	if kind == kindPeer {
		return []string{"v1beta2", "v1beta1"}
	}
	return []string{"v1beta1"}
}

const (
	kindPool    = "IPAddressPool"
	kindPeer    = "BGPPeer"
	kindSecret  = "Secret"
	kindService = "Service"
)

// reports are the kinds in which MetalLB reports its own state.
var reports = []string{"ServiceL2Status", "ServiceBGPStatus", "ConfigurationState"}

// order is the order in which objects are applied: pools before what announces their addresses.
var order = []string{kindSecret, kindPool, "BFDProfile", "Community", kindPeer, "BGPAdvertisement", "L2Advertisement"}

// Outcome is what becomes of a field.
type Outcome string

// The outcomes.
const (
	Kept    Outcome = "Kept"    // the same field with the same value
	Changed Outcome = "Changed" // another field or value, or none because IronLB needs none for the same effect
	Refused Outcome = "Refused" // not imported
)

// Row is the outcome of a field. Without a field it is that of the whole object.
type Row struct {
	Outcome   Outcome `json:"outcome"`
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace,omitempty"` // of a Service
	Name      string  `json:"name"`
	Field     string  `json:"field,omitempty"`
	// Detail is the new field or value, or the reason and what to do.
	Detail string `json:"detail,omitempty"`
}

// Service is a Service that MetalLB serves.
type Service struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Class     string   `json:"class,omitempty"`
	Addresses []string `json:"addresses"` // of its status
}

// Annotations are to be added to a Service before IronLB serves it.
type Annotations struct {
	types.NamespacedName
	Add map[string]string
}

// Result is what replaces MetalLB's objects.
type Result struct {
	Objects     []*unstructured.Unstructured // in the order to apply
	Annotations []Annotations
	Services    []Service
	Rows        []Row
}

// Refused counts the refused rows.
func (r *Result) Refused() (n int) {
	for _, row := range r.Rows {
		if row.Outcome == Refused {
			n++
		}
	}
	return n
}

// Refuse removes an object from the result.
func (r *Result) Refuse(kind, name, why string) {
	r.Objects = slices.DeleteFunc(r.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	r.object(Refused, kind, name, "", why)
	r.sort()
}

func (r *Result) object(outcome Outcome, kind, name, field, detail string) {
	r.Rows = append(r.Rows, Row{Outcome: outcome, Kind: kind, Name: name, Field: field, Detail: detail})
}

func (r *Result) sort() {
	slices.SortStableFunc(r.Objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(rank(a.GetKind())-rank(b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
	})
	slices.SortStableFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(rank(a.Kind)-rank(b.Kind), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func rank(kind string) int {
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

// Convert converts MetalLB's objects: those of its group, the Secrets that its peers name, and its ConfigMaps. Other
// objects are ignored. class is the spec.loadBalancerClass that IronLB serves.
func Convert(objects []*unstructured.Unstructured, services []corev1.Service, class string) (*Result, error) {
	r, secrets, seen, count := &Result{}, map[types.NamespacedName]*unstructured.Unstructured{}, map[string]string{}, map[string]int{}
	labels := map[string]bool{} // that pool selectors use
	for _, o := range objects {
		if group(o) == Group {
			selectedLabels(o, labels)
		}
		if o.GetAPIVersion() == "v1" && o.GetKind() == kindSecret {
			secrets[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = o
		}
	}
	for _, o := range objects {
		kind, id := o.GetKind(), o.GetKind()+" "+o.GetName()
		switch {
		case o.GetAPIVersion() == "v1" && kind == "ConfigMap":
			if err := r.configMap(o); err != nil {
				return nil, err
			}
		case group(o) == "frrk8s."+Group && kind == "FRRConfiguration":
			r.object(Refused, kind, o.GetName(), "", ofFRR)
		case group(o) != Group:
		case slices.Contains(reports, kind):
			count[kind]++
		case kind == "AddressPool":
			return nil, fmt.Errorf("AddressPool %s is of MetalLB before 0.13: convert it to IPAddressPool first, %s", o.GetName(), converter)
		case rules[kind] == nil:
			r.object(Refused, kind, o.GetName(), "", "IronLB has no such kind: replace it by hand")
		case !slices.Contains(Versions(kind), version(o)):
			return nil, fmt.Errorf("%s: apiVersion %s is unknown: write %s/%s", id, o.GetAPIVersion(), Group, Versions(kind)[0])
		case o.GetName() == "":
			return nil, fmt.Errorf("a %s has no metadata.name: write one", kind)
		case seen[id] != "":
			r.object(Refused, kind, o.GetName(), "", fmt.Sprintf("it is in the namespaces %s and %s, and IronLB's kinds have none: rename one",
				seen[id], cmp.Or(o.GetNamespace(), "default")))
		default:
			seen[id] = cmp.Or(o.GetNamespace(), "default")
			c := &conversion{Result: r, source: o, kind: kind, secrets: secrets}
			c.convert(labels)
		}
	}
	for _, kind := range reports {
		if n := count[kind]; n > 0 {
			r.object(Changed, kind, "*", "", fmt.Sprintf("not copied: reports of MetalLB, %d objects", n))
		}
	}
	if err := r.services(services, class); err != nil {
		return nil, err
	}
	r.sort()
	return r, nil
}

func group(o *unstructured.Unstructured) string {
	g, _, _ := strings.Cut(o.GetAPIVersion(), "/")
	return g
}

func version(o *unstructured.Unstructured) string {
	_, v, _ := strings.Cut(o.GetAPIVersion(), "/")
	return v
}

const (
	converter = "with MetalLB's own converter: https://metallb.io/configuration/migration_to_crds/"
	ofFRR     = "a configuration of FRR, which IronLB does not run: if MetalLB does not generate it, configure BGPPeer and BGPAdvertisement for the same effect"
)

// configMap handles the ConfigMaps that MetalLB reads. That of MetalLB before 0.13 is an error.
func (r *Result) configMap(o *unstructured.Unstructured) error {
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	switch name := o.GetName(); {
	case name == "config" && data["config"] != "":
		return fmt.Errorf("ConfigMap %s/config is the configuration of MetalLB before 0.13: convert it to objects first, %s", o.GetNamespace(), converter)
	case name == "bgpextras" && data["extras"] != "":
		r.object(Refused, "ConfigMap", name, "data.extras", ofFRR)
	case name == "metallb-excludel2":
		r.object(Changed, "ConfigMap", name, "data", "not needed: without interfaces, IronLB answers only on those in the subnet of the address")
	}
	return nil
}

// selectedLabels collects the keys of labels of pools that an advertisement selects by.
func selectedLabels(o *unstructured.Unstructured, keys map[string]bool) {
	selectors, _, _ := unstructured.NestedSlice(o.Object, "spec", "ipAddressPoolSelectors")
	for _, s := range selectors {
		selector, _ := s.(map[string]any)
		match, _ := selector["matchLabels"].(map[string]any)
		for key := range match {
			keys[key] = true
		}
		expressions, _ := selector["matchExpressions"].([]any)
		for _, e := range expressions {
			if e, is := e.(map[string]any); is {
				keys[fmt.Sprint(e["key"])] = true
			}
		}
	}
}

// foreign are the labels by which other tools recognize objects of theirs, which they may delete.
var foreign = []string{
	"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "argocd.argoproj.io/", "helm.sh/", "helm.toolkit.fluxcd.io/", "kustomize.toolkit.fluxcd.io/",
}

// conversion is that of one object.
type conversion struct {
	*Result
	source  *unstructured.Unstructured
	kind    string
	secrets map[types.NamespacedName]*unstructured.Unstructured

	from, to map[string]any // the specs
}

func (c *conversion) row(outcome Outcome, field, detail string) {
	c.object(outcome, c.kind, c.source.GetName(), field, detail)
}

// convert converts the object. selected are the labels that must not be lost.
func (c *conversion) convert(selected map[string]bool) {
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetAPIVersion(v1alpha1.GroupVersion.String())
	out.SetKind(c.kind)
	out.SetName(c.source.GetName())
	if c.source.GetNamespace() != "" {
		c.row(Changed, "metadata.namespace", "removed: the kind has no namespace")
	}
	keep := maps.Clone(c.source.GetLabels())
	var lost []string
	for _, key := range slices.Sorted(maps.Keys(keep)) {
		tool := slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
		if tool && !(c.kind == kindPool && selected[key]) {
			lost = append(lost, key)
			delete(keep, key)
		}
	}
	if len(keep) > 0 {
		out.SetLabels(keep)
		c.row(Kept, "metadata.labels", "")
	}
	if len(lost) > 0 {
		c.row(Changed, "metadata.labels", "without "+strings.Join(lost, ", ")+": other tools find their own objects by it")
	}
	annotations := slices.Sorted(maps.Keys(c.source.GetAnnotations()))
	annotations = slices.DeleteFunc(annotations, func(key string) bool { return key == corev1.LastAppliedConfigAnnotation })
	if len(annotations) > 0 {
		c.row(Changed, "metadata.annotations", "not copied: "+strings.Join(annotations, ", "))
	}
	for _, field := range []string{"finalizers", "ownerReferences"} {
		if list, _, _ := unstructured.NestedSlice(c.source.Object, "metadata", field); len(list) > 0 {
			c.row(Changed, "metadata."+field, "not copied: they belong to the old object")
		}
	}
	spec, isObject := c.source.Object["spec"].(map[string]any)
	if c.source.Object["spec"] != nil && !isObject {
		c.row(Refused, "spec", "is not an object: write its fields")
		return
	}
	c.from, c.to = spec, map[string]any{}
	c.walk("spec", "", c.from, c.to)
	for _, field := range slices.Sorted(maps.Keys(c.source.Object)) {
		switch field {
		case "apiVersion", "kind", "metadata", "spec":
		case "status":
			if status, _ := c.source.Object[field].(map[string]any); len(status) > 0 {
				c.row(Changed, field, "not copied: IronLB writes its own")
			}
		default:
			c.row(Refused, field, unknownField)
		}
	}
	out.Object["spec"] = c.to
	c.Objects = append(c.Objects, out)
}

const unknownField = "unknown field: remove it, or convert it by hand"

// walk applies the rules to the fields of an object in a spec. path is the path for users, pattern that of the rules.
func (c *conversion) walk(path, pattern string, from, to map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		f := &field{conversion: c, name: name, path: path + "." + name, pattern: strings.TrimPrefix(pattern+"."+name, "."), value: from[name], out: to}
		switch v := f.value.(type) {
		case nil:
			continue
		case string:
			if v == "" {
				continue // as if absent
			}
		case []any:
			if len(v) == 0 {
				continue
			}
		}
		if rule := rules[c.kind][f.pattern]; rule != nil {
			rule(f)
		} else {
			f.refuse(unknownField)
		}
	}
}

// PoolOf returns the converted pool that contains an address, nil if none does.
func PoolOf(objects []*unstructured.Unstructured, addr netip.Addr) *unstructured.Unstructured {
	for _, o := range objects {
		if o.GetKind() != kindPool {
			continue
		}
		entries, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "addresses")
		for _, e := range entries {
			if r, err := pools.ParseRange(e); err == nil && r.Contains(addr) {
				return o
			}
		}
	}
	return nil
}
