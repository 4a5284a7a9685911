package virtualip

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// match is the set of nodes that may announce a unit.
type match struct {
	// nodes are eligible, sorted; weights are their preferences. Shared by units with equal matches.
	nodes   []string
	weights placement.Weights
	// interfaces are those that the advertisements name; bySubnet: one names none, and those in the subnet of an address
	// announce it.
	interfaces []string
	bySubnet   bool
	// reason and message explain an empty set.
	reason, message string
}

// matcher determines the eligible nodes of a unit. Each pass creates a new one.
type matcher struct {
	ads      []advertisement.Selection
	nodes    []*v1.Node        // by name
	excluded map[string]string // why a node may not announce any address
	poolOf   func(pool string) map[string]string
	services func(pools.ServiceKey) map[string]string
	cached   map[string]match
}

// policies are the pools by name, for placement.
type policies map[string]*v1alpha1.IPAddressPool

// Reasons of the condition NoEligibleNode.
const (
	reasonNoNodeMatches      = "NoNodeMatches"
	reasonNodesExcluded      = "NodesExcluded"
	reasonNoCommonNode       = "NoCommonNode"
	reasonServicesNotCovered = "ServicesNotCovered"
	reasonNodesEligible      = "NodesEligible"
)

// newMatcher takes the advertisements and nodes, whether the exclude label of nodes is ignored, and the functions that
// return the labels of a pool and of a Service.
func newMatcher(ads []advertisement.Selection, nodes []*v1.Node, ignoreExclude bool, poolOf func(string) map[string]string,
	services func(pools.ServiceKey) map[string]string) *matcher {
	m := &matcher{ads: ads, nodes: slices.Clone(nodes), excluded: map[string]string{}, poolOf: poolOf, services: services, cached: map[string]match{}}
	slices.SortFunc(m.nodes, func(a, b *v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range m.nodes {
		if why := watch.ExclusionReason(n, ignoreExclude); why != "" {
			m.excluded[n.Name] = why
		}
	}
	return m
}

// advertised returns the advertised addresses of the unit, and the nodes that may announce them together. An
// advertisement counts only if it selects every Service of the unit. None: no advertisement selects any of them.
func (m *matcher) advertised(u unit) ([]pools.Address, match) {
	var all, some []int // the advertisements that select all the Services, and those that select some
	lacks := map[int]pools.ServiceKey{}
	for i := range m.ads {
		a := &m.ads[i]
		is := func(s pools.ServiceKey) bool { return len(a.Services) == 0 || a.SelectsService(m.services(s)) }
		isNot := func(s pools.ServiceKey) bool { return !is(s) }
		switch missing := slices.IndexFunc(u.services, isNot); {
		case missing < 0:
			all = append(all, i)
		case slices.ContainsFunc(u.services, is):
			some = append(some, i)
			lacks[i] = u.services[missing]
		}
	}
	if addresses := m.served(u.addresses, all); len(addresses) > 0 {
		return addresses, m.match(addresses, all)
	}
	for _, i := range some {
		if addresses := m.served(u.addresses, some); len(addresses) > 0 && len(m.served(addresses, []int{i})) > 0 {
			return addresses, match{reason: reasonServicesNotCovered, message: fmt.Sprintf(
				"One node announces the address for all its Services, and no L2Advertisement selects all of them: %s is missing. Widen serviceSelectors, or give it another address", lacks[i])}
		}
	}
	return nil, match{}
}

// served returns the addresses whose pools are selected by one of the advertisements.
func (m *matcher) served(addresses []pools.Address, ads []int) []pools.Address {
	return slices.DeleteFunc(slices.Clone(addresses), func(a pools.Address) bool {
		labels := m.poolOf(a.Pool)
		return !slices.ContainsFunc(ads, func(i int) bool { return m.ads[i].SelectsPool(a.Pool, labels) })
	})
}

// match returns the nodes that may announce all the addresses by the advertisements.
func (m *matcher) match(addresses []pools.Address, ads []int) match {
	var of []string // the pools
	for _, a := range addresses {
		of = append(of, a.Pool)
	}
	slices.Sort(of)
	of = slices.Compact(of)
	key := fmt.Sprint(ads, len(of), strings.Join(of, "/"))
	if found, ok := m.cached[key]; ok {
		return found
	}
	out := m.compute(of, ads)
	m.cached[key] = out
	return out
}

func (m *matcher) compute(of []string, ads []int) match {
	var out match
	for _, i := range ads {
		out.interfaces = append(out.interfaces, m.ads[i].Interfaces...)
		out.bySubnet = out.bySubnet || len(m.ads[i].Interfaces) == 0
	}
	weights := map[string]int{}
	matched, excluded := 0, []string(nil)
	for _, n := range m.nodes {
		weight, everywhere, anywhere := 0, true, false
		for _, pool := range of {
			labels := m.poolOf(pool)
			here := false
			for _, i := range ads {
				if a := &m.ads[i]; a.SelectsPool(pool, labels) && a.SelectsNode(n) {
					here = true
					weight = max(weight, a.Weight(n))
				}
			}
			everywhere, anywhere = everywhere && here, anywhere || here
		}
		if anywhere {
			matched++
		}
		if !everywhere {
			continue
		}
		if why := m.excluded[n.Name]; why != "" {
			excluded = append(excluded, n.Name+" ("+why+")")
			continue
		}
		out.nodes = append(out.nodes, n.Name)
		if weight > 0 {
			weights[n.Name] = weight
		}
	}
	if len(weights) > 0 {
		out.weights = &weights
	}
	switch {
	case len(out.nodes) > 0:
	case len(excluded) > 0:
		out.reason, out.message = reasonNodesExcluded, "No node that an L2Advertisement for this address selects is eligible now: "+condition.Some(condition.Names(excluded))
		if strings.Contains(out.message, v1.LabelNodeExcludeBalancers) {
			out.message += ". Remove the label, or set the chart's value ignoreExcludeLB"
		}
	case matched > 0:
		out.reason = reasonNoCommonNode
		out.message = fmt.Sprintf("No node is eligible for the addresses of all the pools %s, which move together: make the L2Advertisements of these pools select a common node", strings.Join(of, ", "))
	default:
		out.reason, out.message = reasonNoNodeMatches, "No node matches spec.nodeSelectors of an L2Advertisement for this address: widen them, or label a node"
	}
	return out
}

// placementNode returns the node's properties that placement needs.
func placementNode(n *v1.Node) placement.Node {
	return placement.Node{Name: n.Name, Ready: watch.HasCondition(n, v1.NodeReady), Cordoned: n.Spec.Unschedulable}
}

func (p *Placer) policies(ctx context.Context) (policies, error) {
	var list v1alpha1.IPAddressPoolList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing IPAddressPools from the cache: %w", err)
	}
	of := make(policies, len(list.Items))
	for i := range list.Items {
		of[list.Items[i].Name] = &list.Items[i]
	}
	return of, nil
}

// labels returns the labels of the pool, none if it is deleted.
func (of policies) labels(pool string) map[string]string {
	if obj := of[pool]; obj != nil {
		return obj.Labels
	}
	return nil
}

// request returns the value of the pool's annotation if it has not been carried out.
func request(obj *v1alpha1.IPAddressPool) string {
	if obj == nil || obj.Annotations[v1alpha1.AnnotationRebalance] == obj.Status.Rebalanced {
		return ""
	}
	return obj.Annotations[v1alpha1.AnnotationRebalance]
}

// request returns the request to move the VirtualIP: from its own annotation (the VirtualIP may be absent), or from a
// pool of its addresses. Empty: there is none.
func (of policies) request(vip *v1alpha1.VirtualIP, addresses []pools.Address) string {
	if vip != nil && vip.Annotations[v1alpha1.AnnotationRebalance] != "" {
		return vip.Name + "=" + vip.Annotations[v1alpha1.AnnotationRebalance]
	}
	for _, a := range addresses {
		if value := request(of[a.Pool]); value != "" {
			return a.Pool + "=" + value
		}
	}
	return ""
}

// gradual reports whether all the pools of the addresses are rebalanced without a request, and their greatest delay.
func (of policies) gradual(addresses []pools.Address) (delay time.Duration, yes bool) {
	for _, a := range addresses {
		obj := of[a.Pool]
		if obj == nil || obj.Spec.Rebalance != v1alpha1.RebalanceGradual {
			return 0, false
		}
		if d := obj.Spec.PreemptDelay; d != nil {
			delay = max(delay, d.Duration)
		} else {
			delay = max(delay, v1alpha1.DefaultPreemptDelay)
		}
	}
	return delay, true
}

// acknowledge records that requests have been carried out, once nothing improves any more.
func (p *Placer) acknowledge(ctx context.Context, of policies, have map[string]*v1alpha1.VirtualIP) error {
	if !p.mover.done {
		return nil
	}
	var errs []error
	for name, vip := range have {
		if value := vip.Annotations[v1alpha1.AnnotationRebalance]; value != "" && p.mover.requested[name] {
			errs = append(errs, p.writer.acknowledge(ctx, vip))
		}
	}
	for name, obj := range of {
		value := request(obj)
		if value == "" {
			continue
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"rebalanced": value}})
		if err == nil {
			err = p.client.Status().Patch(ctx, obj.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		}
		if client.IgnoreNotFound(err) != nil {
			err = fmt.Errorf("writing status.rebalanced of IPAddressPool %s: %w", name, err)
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				err = fmt.Errorf("%w (apply deploy/ironlb.yaml, or upgrade the Helm release)", err)
			}
			errs = append(errs, err)
			continue
		}
		p.log.Info("pool rebalanced", "pool", name, "request", value)
	}
	return errors.Join(errs...)
}

// advertisements parses all L2Advertisements. An Event reports each problem once.
func (p *Placer) advertisements(ctx context.Context, of policies) ([]advertisement.Selection, error) {
	var list v1alpha1.L2AdvertisementList
	if err := p.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing L2Advertisements from the cache: %w", err)
	}
	known := make(map[string]map[string]string, len(of))
	for name, obj := range of {
		known[name] = obj.Labels
	}
	var ads []advertisement.Selection
	unknownSince := p.unknown
	p.unknown = map[string]time.Time{}
	published, conditioned, failed := p.published, p.conditioned, p.failed
	p.published, p.conditioned, p.failed = map[string]string{}, map[string]string{}, map[string]string{}
	for i := range list.Items {
		obj := &list.Items[i]
		ad, err := advertisement.OfL2(obj)
		ads = append(ads, ad)
		want := metav1.Condition{Type: condition.Ready, Status: metav1.ConditionTrue, Reason: condition.ReasonRead, Message: "The advertisement is in use", ObservedGeneration: obj.Generation}
		missing, unknown := ad.Missing(obj.Spec.IPAddressPoolSelectors, known), p.attached.unknown(ad.Interfaces)
		switch {
		case err != nil:
			want.Status, want.Reason = metav1.ConditionFalse, condition.ReasonInvalidSelector
			want.Message = fmt.Sprintf("%v. The selector matches nothing until it is fixed", err)
			if missing != "" {
				want.Message += "; " + missing
			}
		case missing != "":
			want.Status, want.Reason, want.Message = metav1.ConditionFalse, condition.ReasonUnknownPool, missing
		case unknown != "" && p.stayUnknown(obj, unknownSince):
			want.Status, want.Reason, want.Message = metav1.ConditionFalse, condition.ReasonUnknownInterface, unknown
		case len(ad.Repeated) > 0:
			want.Status, want.Reason = metav1.ConditionFalse, condition.ReasonRepeatedSelector
			want.Message = strings.Join(ad.Repeated, "; ") + ". The advertisement is in use"
		}
		if want.Status == metav1.ConditionFalse {
			what := want.Message
			if want.Reason == condition.ReasonUnknownInterface { // other interfaces of nodes come and go
				what = fmt.Sprint(want.Reason, obj.Generation)
			}
			p.published[obj.Name] = what
			if published[obj.Name] != what {
				p.events.Event(obj, v1.EventTypeWarning, want.Reason, want.Message)
			}
		}
		p.condition(ctx, obj, want, conditioned[obj.Name], failed[obj.Name])
	}
	return ads, nil
}

// unknownFor is how long the interfaces of an advertisement are unknown before that is reported: the speakers report an
// interface without an address only once an advertisement names it.
const unknownFor = 30 * time.Second

// stayUnknown reports whether the interfaces of an advertisement have been unknown for long enough, or were reported.
func (p *Placer) stayUnknown(obj *v1alpha1.L2Advertisement, since map[string]time.Time) bool {
	key := fmt.Sprint(obj.Name, " ", obj.Generation)
	began, known := since[key]
	if !known {
		began = time.Now()
	}
	p.unknown[key] = began
	is := meta.FindStatusCondition(obj.Status.Conditions, condition.Ready)
	if is != nil && is.Reason == condition.ReasonUnknownInterface && is.ObservedGeneration == obj.Generation {
		return true
	}
	p.wake(began.Add(unknownFor))
	return time.Since(began) >= unknownFor
}

// condition writes the condition Ready of the advertisement. Placement does not wait for it: a failed write is retried
// in the next pass.
func (p *Placer) condition(ctx context.Context, obj *v1alpha1.L2Advertisement, want metav1.Condition, written, failed string) {
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
