package ccm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// reasonUnknownPool of the condition Ready of an advertisement: a pool that it selects does not exist.
const reasonUnknownPool = "UnknownPool"

// reasonRepeatedSelector of the condition Ready: a selector is in its list twice.
const reasonRepeatedSelector = "RepeatedSelector"

// advertisement is a parsed L2Advertisement.
type advertisement struct {
	pools         []string
	poolSelectors []pools.Selector // if pools is empty too: all
	services      []pools.Selector // empty: all
	nodes         []pools.Selector // empty: all
	preferred     []preference
	// repeated describes the selectors that are in a list twice.
	repeated []string
}

// preference gives the nodes that match a weight.
type preference struct {
	weight   int
	selector pools.Selector
}

// advertisementOf parses the object. An invalid selector matches nothing and is reported, with its field.
func advertisementOf(obj *v1alpha1.L2Advertisement) (advertisement, error) {
	spec := &obj.Spec
	var read reader
	a := advertisement{
		pools:         spec.IPAddressPools,
		poolSelectors: read.all("ipAddressPoolSelectors", spec.IPAddressPoolSelectors),
		services:      read.all("serviceSelectors", spec.ServiceSelectors),
		nodes:         read.all("nodeSelectors", spec.NodeSelectors),
	}
	for i := range spec.PreferredNodeSelectors {
		p := &spec.PreferredNodeSelectors[i]
		a.preferred = append(a.preferred, preference{
			int(p.Weight), read.one(fmt.Sprintf("preferredNodeSelectors[%d].preference", i), &p.Preference),
		})
	}
	a.repeated = read.repeated
	return a, read.err()
}

// reader parses the selectors of a spec and collects the errors.
type reader struct {
	bad      []error
	repeated []string
}

func (r *reader) one(field string, in *metav1.LabelSelector) pools.Selector {
	s, err := v1alpha1.SelectorOf(in)
	if err != nil {
		r.bad = append(r.bad, fmt.Errorf("spec.%s: %w", field, err))
	}
	return s
}

func (r *reader) all(field string, in []metav1.LabelSelector) (out []pools.Selector) {
	for i := range in {
		out = append(out, r.one(fmt.Sprintf("%s[%d]", field, i), &in[i]))
	}
	r.repeated = append(r.repeated, repeats(field, in)...)
	return out
}

// repeats describes the selectors that occur earlier in the same list: probably another one was meant.
func repeats(field string, in []metav1.LabelSelector) (out []string) {
	first := map[string]int{}
	for i := range in {
		text := metav1.FormatLabelSelector(&in[i]) // sorted
		if at, is := first[text]; is && text != "<error>" {
			out = append(out, fmt.Sprintf("spec.%s[%d] is the same as [%d]: remove one of them, or correct it", field, i, at))
			continue
		}
		first[text] = i
	}
	return out
}

func (r *reader) err() error { return errors.Join(r.bad...) }

// missing describes the selected pools that do not exist; labels are those of all pools. An invalid selector is
// reported separately.
func (a *advertisement) missing(selectors []metav1.LabelSelector, labels map[string]map[string]string) string {
	var problems []string
	var names []text
	for _, name := range a.pools {
		if _, is := labels[name]; !is {
			names = append(names, text(name))
		}
	}
	if len(names) > 0 {
		problems = append(problems, fmt.Sprintf("spec.ipAddressPools: there is no IPAddressPool %s: create it, or remove it from the list", someOf(names)))
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
		if a.serves(name, labels[name]) {
			return strings.Join(problems, "; ") + ". The advertisement is in use for the other pools"
		}
	}
	return strings.Join(problems, "; ") + ". The advertisement selects no addresses until then"
}

// matchAny reports whether a selector matches; an empty list matches everything.
func matchAny(selectors []pools.Selector, labels map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s pools.Selector) bool { return s.Matches(labels) })
}

// serves reports whether the advertisement selects the pool.
func (a *advertisement) serves(pool string, labels map[string]string) bool {
	if len(a.pools) == 0 && len(a.poolSelectors) == 0 || slices.Contains(a.pools, pool) {
		return true
	}
	return len(a.poolSelectors) > 0 && matchAny(a.poolSelectors, labels)
}

// of reports whether the advertisement selects a Service with the labels.
func (a *advertisement) of(service map[string]string) bool { return matchAny(a.services, service) }

// on reports whether the advertisement selects the node.
func (a *advertisement) on(n *v1.Node) bool { return matchAny(a.nodes, n.Labels) }

// weight is the preference of the node: the sum of the matching weights.
func (a *advertisement) weight(n *v1.Node) int {
	sum := 0
	for _, p := range a.preferred {
		if p.selector.Matches(n.Labels) {
			sum += p.weight
		}
	}
	return sum
}

// advertisements parses all L2Advertisements. An Event reports each problem once.
func (p *placer) advertisements(ctx context.Context, of policies) ([]advertisement, error) {
	var list v1alpha1.L2AdvertisementList
	if err := p.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing L2Advertisements from the cache: %w", err)
	}
	known := make(map[string]map[string]string, len(of))
	for name, obj := range of {
		known[name] = obj.Labels
	}
	var ads []advertisement
	published, conditioned, failed := p.published, p.conditioned, p.failed
	p.published, p.conditioned, p.failed = map[string]string{}, map[string]string{}, map[string]string{}
	for i := range list.Items {
		obj := &list.Items[i]
		ad, err := advertisementOf(obj)
		ads = append(ads, ad)
		want := metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: reasonRead, Message: "The advertisement is in use", ObservedGeneration: obj.Generation}
		missing := ad.missing(obj.Spec.IPAddressPoolSelectors, known)
		switch {
		case err != nil:
			want.Status, want.Reason = metav1.ConditionFalse, reasonInvalidSelector
			want.Message = fmt.Sprintf("%v. The selector matches nothing until it is fixed", err)
			if missing != "" {
				want.Message += "; " + missing
			}
		case missing != "":
			want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonUnknownPool, missing
		case len(ad.repeated) > 0:
			want.Status, want.Reason = metav1.ConditionFalse, reasonRepeatedSelector
			want.Message = strings.Join(ad.repeated, "; ") + ". The advertisement is in use"
		}
		if want.Status == metav1.ConditionFalse {
			p.published[obj.Name] = want.Message
			if published[obj.Name] != want.Message {
				p.events.Event(obj, v1.EventTypeWarning, want.Reason, want.Message)
			}
		}
		p.condition(ctx, obj, want, conditioned[obj.Name], failed[obj.Name])
	}
	return ads, nil
}

// condition writes the condition Ready of the advertisement. Placement does not wait for it: a failed write is retried
// in the next pass.
func (p *placer) condition(ctx context.Context, obj *v1alpha1.L2Advertisement, want metav1.Condition, written, failed string) {
	name, version := obj.Name, obj.ResourceVersion
	if !meta.SetStatusCondition(&obj.Status.Conditions, want) {
		return
	}
	p.conditioned[name] = version
	if written == version {
		return // it is not in the cache yet
	}
	patch, err := json.Marshal(map[string]any{"status": obj.Status})
	if err == nil {
		err = client.IgnoreNotFound(p.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch)))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	delete(p.conditioned, name)
	if p.failed[name] = err.Error(); failed != err.Error() {
		p.log.Warn("condition not written", "advertisement", name, "error", err, "remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	}
}
