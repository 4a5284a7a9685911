package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// placer keeps one VirtualIP per unit. One goroutine owns its state; informers only kick it.
type placer struct {
	log      *slog.Logger
	events   record.EventRecorder
	ledger   *ledger
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	client   client.Client
	writer   *vipWriter
	synced   []cache.InformerSynced
	pulse    *pulse
	kick     chan struct{}

	// placed are the lists decided, by VirtualIP; of is the VirtualIP of each address. They are newer than any cache.
	placed map[string][]string
	of     map[string]string
	// thought is how long the last pass took to decide, without the writing.
	thought time.Duration
	// told are the advertisements whose error has been said, with the error; conditioned is the version of each in the cache
	// when its condition was written; failed are those of which it could not be, with the error.
	told, conditioned, failed map[string]string
}

func newPlacer(c *Cloud) *placer {
	return &placer{
		log:      c.log,
		events:   c.events,
		ledger:   c.ledger,
		services: c.core.Core().V1().Services().Lister(),
		nodes:    c.core.Core().V1().Nodes().Lister(),
		client:   c.client,
		writer:   newVIPWriter(c.log, c.client, func() { c.pulse.beat("placement") }),
		pulse:    c.pulse,
		kick:     make(chan struct{}, 1),
	}
}

// handler kicks when a Service or a Node changed in what placement looks at.
func (p *placer) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { kicked(p.kick) },
		DeleteFunc: func(any) { kicked(p.kick) },
		UpdateFunc: func(before, after any) {
			switch before := before.(type) {
			case *v1.Service:
				if !serviceMatters(before, after.(*v1.Service)) {
					return
				}
			case *v1.Node:
				if !nodeMatters(before, after.(*v1.Node)) {
					return
				}
			}
			kicked(p.kick)
		},
	}
}

// nodeMatters says whether placement looks at what changed: not at heartbeats.
func nodeMatters(before, after *v1.Node) bool {
	return placementNode(before) != placementNode(after) || mayAnswer(before) != mayAnswer(after) ||
		!labels.Equals(before.Labels, after.Labels)
}

// Run returns when ctx ends.
func (p *placer) Run(ctx context.Context) error {
	if !waitSynced(ctx, p.log, p.synced) || p.ledger.waitReady(ctx) != nil {
		return nil
	}
	retry := newBackoff()
	for {
		if err := p.pass(ctx); err != nil && ctx.Err() == nil {
			wait := retry.Step()
			p.log.Warn("placement not written", "error", err, "again in", wait)
			if !sleep(ctx, wait) {
				return nil
			}
			continue
		}
		retry = newBackoff()
		if !sleep(ctx, p.rest()) || !p.pulse.wait(ctx, "placement", p.kick) {
			return nil
		}
	}
}

// rest is how long to leave the next pass. A pass looks at every Service, so in a burst as many as fit one after another would
// take a processor: they get a tenth of one, and one change by itself is placed at once.
func (p *placer) rest() time.Duration { return min(9*p.thought, time.Second) }

// pass decides all lists and writes those that differ.
func (p *placer) pass(ctx context.Context) error {
	start := time.Now()
	seen, err := p.virtualIPs(ctx)
	if err != nil {
		return err
	}
	if p.placed == nil {
		p.recall(seen)
	}
	ads, err := p.advertisements(ctx)
	if err != nil {
		return err
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	services, err := p.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	want := p.decide(unitsOf(services, p.ledger.standing), newMatcher(ads, nodes), nodes)
	p.thought = time.Since(start)
	return p.writer.write(ctx, seen, want)
}

// decide returns the wanted VirtualIPs and keeps the lists in mind.
func (p *placer) decide(units []unit, m *matcher, nodes []*v1.Node) []wantedVIP {
	var want []wantedVIP
	var ask []placement.Unit
	for _, u := range units {
		u.addresses = slices.DeleteFunc(u.addresses, func(a pools.Address) bool { return !m.advertised(a.Pool) })
		if len(u.addresses) == 0 {
			continue
		}
		want = append(want, wantedVIP{name: u.name(), spec: specOf(u)})
		ask = append(ask, placement.Unit{Name: u.name(), Eligible: m.eligible(u.addresses), Previous: p.previous(u)})
	}
	known := make([]placement.Node, len(nodes))
	for i, n := range nodes {
		known[i] = placementNode(n)
	}
	lists := map[string]placement.List{}
	led := map[string]int{}
	for _, n := range m.nodes {
		led[n.Name] = 0
	}
	for _, l := range placement.Place(ask, known) {
		lists[l.Unit] = l
		if len(l.Nodes) > 0 {
			led[l.Nodes[0]]++
		}
	}
	measureNodes(led)

	p.placed, p.of = map[string][]string{}, map[string]string{}
	for i := range want {
		w := &want[i]
		w.spec.Nodes, w.reason = lists[w.name].Nodes, lists[w.name].Reason
		p.remember(w.name, w.spec)
	}
	return want
}

// previous is the list of the unit: by its name, or by an address of it when its lowest address is new.
func (p *placer) previous(u unit) []string {
	if list, ok := p.placed[u.name()]; ok {
		return list
	}
	for _, a := range u.addresses {
		if name, ok := p.of[a.Addr.String()]; ok {
			return p.placed[name]
		}
	}
	return nil
}

// recall takes over what the VirtualIPs say, after a start.
func (p *placer) recall(seen map[string]*v1alpha1.VirtualIP) {
	p.placed, p.of = map[string][]string{}, map[string]string{}
	for name, vip := range seen {
		p.remember(name, vip.Spec)
	}
}

func (p *placer) remember(name string, spec v1alpha1.VirtualIPSpec) {
	p.placed[name] = spec.Nodes
	for _, a := range spec.Addresses {
		p.of[a] = name
	}
}

func (p *placer) virtualIPs(ctx context.Context) (map[string]*v1alpha1.VirtualIP, error) {
	var list v1alpha1.VirtualIPList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing VirtualIPs from the cache: %w", err)
	}
	seen := make(map[string]*v1alpha1.VirtualIP, len(list.Items))
	for i := range list.Items {
		seen[list.Items[i].Name] = &list.Items[i]
	}
	return seen, nil
}

// advertisements reads all of them. What is wrong with one is said once.
func (p *placer) advertisements(ctx context.Context) ([]advertisement, error) {
	var list v1alpha1.L2AdvertisementList
	if err := p.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing L2Advertisements from the cache: %w", err)
	}
	var ads []advertisement
	told, conditioned, failed := p.told, p.conditioned, p.failed
	p.told, p.conditioned, p.failed = map[string]string{}, map[string]string{}, map[string]string{}
	for i := range list.Items {
		obj := &list.Items[i]
		ad, err := advertisementOf(obj)
		ads = append(ads, ad)
		if err != nil {
			p.told[obj.Name] = err.Error()
			if told[obj.Name] != err.Error() {
				p.events.Eventf(obj, v1.EventTypeWarning, "InvalidSelector", "spec.nodeSelectors: %v: the selector matches no node until it is mended", err)
			}
		}
		p.condition(ctx, obj, err, conditioned[obj.Name], failed[obj.Name])
	}
	return ads, nil
}

// condition says on the advertisement whether it could be read. Placement does not wait for it: what fails is tried again in
// the next pass.
func (p *placer) condition(ctx context.Context, obj *v1alpha1.L2Advertisement, problem error, written, failed string) {
	want := metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: "Read", Message: "The advertisement is in use", ObservedGeneration: obj.Generation}
	if problem != nil {
		want.Status, want.Reason = metav1.ConditionFalse, "InvalidSelector"
		want.Message = fmt.Sprintf("spec.nodeSelectors: %v. The selector matches no node until it is mended", problem)
	}
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
		p.log.Warn("condition not written", "advertisement", name, "error", err, "mend", "apply deploy/crd and deploy/rbac-ccm.yaml")
	}
}

// specOf is the spec of the unit's VirtualIP without the nodes.
func specOf(u unit) v1alpha1.VirtualIPSpec {
	spec := v1alpha1.VirtualIPSpec{}
	for _, a := range u.addresses {
		spec.Addresses = append(spec.Addresses, a.Addr.String())
	}
	for _, s := range u.services {
		spec.Services = append(spec.Services, v1alpha1.ServiceReference{Namespace: s.Namespace, Name: s.Name})
	}
	return spec
}

// servicesOf lists the Services for people.
func servicesOf(spec v1alpha1.VirtualIPSpec) string {
	var names []string
	for _, s := range spec.Services {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return strings.Join(names, " ")
}
