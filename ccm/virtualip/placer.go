// Package virtualip is the placement controller: it writes one VirtualIP for the addresses that move together.
//
// One goroutine, Placer, runs passes; informers only trigger it. A pass groups the addresses that move together
// (unit), finds the nodes that an L2Advertisement selects for them (matcher), decides the order of the nodes (package
// placement, pure), and writes what differs (vipWriter). The node that announces an address stays first. Deliberate
// moves go one at a time, to nodes whose speakers can take over (mover). After a start and after an outage of the API
// server the lists stay unchanged until the speakers have had time to report what they elected (settles). Addresses
// that a foreign host has are withheld from the allocator (foreignHosts).
package virtualip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Allocation is what placement depends on of the allocation of addresses.
type Allocation interface {
	// WaitReady returns once recorded addresses have been adopted.
	WaitReady(ctx context.Context) error
	// Standing returns the addresses that the Service shows rightfully.
	Standing(svc *v1.Service) []pools.Address
	// PoolOf returns the pool that has an address, empty for none.
	PoolOf(addr netip.Addr) string
	// SetHosts sets the addresses of foreign hosts, with the name of each host.
	SetHosts(hosts map[netip.Addr]string)
}

// Placer maintains one VirtualIP per unit. One goroutine owns its state; informers only trigger it.
type Placer struct {
	log      *slog.Logger
	events   record.EventRecorder
	ledger   Allocation
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	client   client.Client
	writer   *vipWriter
	outage   Outages
	// ignoreExclude includes nodes with the exclude label.
	ignoreExclude bool

	Synced   []cache.InformerSynced
	liveness *loop.Liveness
	Trigger  chan struct{}

	placement placement.Placer
	mover     *mover
	// targets are the possible targets of moves, of the Nodes in live, attached their interfaces. reports is set when a
	// SpeakerStatus has changed since.
	targets  moveTargets
	attached attached
	live     map[string]bool
	reports  atomic.Bool
	// foreign are the addresses of foreign hosts.
	foreign foreignHosts
	// placed are the decided lists, by VirtualIP; of maps each address to its VirtualIP. They are used for a unit whose
	// VirtualIP has another name or does not exist.
	placed map[string][]string
	of     map[string]string
	// started is the time of the first pass, changed that of the last pass that changed a list. exact: the last pass
	// spread exactly.
	started, changed time.Time
	exact            bool
	// owners are those of the statuses at the last pass, while not all had settled. reported is when one of them
	// changed.
	owners   map[string]string
	reported time.Time
	// deferred is set while lists are left unchanged although they should change, until all has settled.
	deferred bool
	// alarm triggers a pass at the time next, if there is one.
	alarm *time.Timer
	next  time.Time
	// passTook is how long the last pass took to decide, without the writes.
	passTook time.Duration
	// published are the advertisements whose error has been reported, with the error. conditioned is the cached version
	// of each when its condition was written. failed are those whose condition could not be written, with the error.
	published, conditioned, failed map[string]string
	// unknown are the advertisements with unknown interfaces, and since when.
	unknown map[string]time.Time
}

// Config is what the placer needs.
type Config struct {
	Log        *slog.Logger
	Events     record.EventRecorder
	Allocation Allocation
	Services   corelisters.ServiceLister
	Nodes      corelisters.NodeLister
	Client     client.Client
	Outage     Outages
	Liveness   *loop.Liveness
	// IgnoreExclude includes nodes with the exclude label.
	IgnoreExclude bool
}

const (
	// exactAfter is the time without a change after which the order of the lists is made exact.
	exactAfter = 5 * time.Second
	// afterConflict is how long to wait until the cache has the version that a write conflicted with.
	afterConflict = 200 * time.Millisecond
)

func New(c Config) *Placer {
	return &Placer{
		log: c.Log, events: c.Events, ledger: c.Allocation, services: c.Services, nodes: c.Nodes, client: c.Client,
		writer: newVIPWriter(c.Log, c.Events, c.Client, func() { c.Liveness.Tick("placement") }),
		outage: c.Outage, ignoreExclude: c.IgnoreExclude, liveness: c.Liveness,
		Trigger: make(chan struct{}, 1), mover: newMover(c.Log, c.Events),
	}
}

// Handler triggers a pass when an object changed in a field relevant to placement.
func (p *Placer) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { loop.Trigger(p.Trigger) },
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if vip, ok := o.(*v1alpha1.VirtualIP); ok {
				p.writer.deletionSeen(vip.UID)
			}
			loop.Trigger(p.Trigger)
		},
		UpdateFunc: func(before, after any) {
			switch before := before.(type) {
			case *v1.Service:
				now := after.(*v1.Service)
				if !watch.ServiceChanged(before, now) && before.Spec.ExternalTrafficPolicy == now.Spec.ExternalTrafficPolicy {
					return
				}
			case *v1.Node:
				if !p.nodeMatters(before, after.(*v1.Node)) {
					return
				}
			case *v1alpha1.IPAddressPool:
				if !watch.PoolChanged(before, after.(*v1alpha1.IPAddressPool)) {
					return
				}
			}
			loop.Trigger(p.Trigger)
		},
	}
}

// Watch registers the handlers. A change of the reports of the speakers counts only in the fields relevant to
// placement.
func (p *Placer) Watch(ctx context.Context, core informers.SharedInformerFactory, kinds watch.Kinds) error {
	for _, inf := range []cache.SharedIndexInformer{core.Core().V1().Services().Informer(), core.Core().V1().Nodes().Informer()} {
		if _, err := inf.AddEventHandler(p.Handler()); err != nil {
			return fmt.Errorf("watching Services and Nodes: %w", err)
		}
		p.Synced = append(p.Synced, inf.HasSynced)
	}
	own, err := kinds.WatchAll(ctx, p.Handler(), &v1alpha1.L2Advertisement{}, &v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{})
	if err != nil {
		return err
	}
	reports, err := kinds.Watch(ctx, &v1alpha1.SpeakerStatus{}, p.SpeakerHandler())
	p.Synced = append(append(p.Synced, own...), reports)
	return err
}

// Wake triggers a pass.
func (p *Placer) Wake() { loop.Trigger(p.Trigger) }

// nodeMatters reports whether the change is relevant to placement: heartbeats are not.
func (p *Placer) nodeMatters(before, after *v1.Node) bool {
	return placementNode(before) != placementNode(after) ||
		watch.ExclusionReason(before, p.ignoreExclude) != watch.ExclusionReason(after, p.ignoreExclude) ||
		!labels.Equals(before.Labels, after.Labels)
}

// Run returns when ctx ends.
func (p *Placer) Run(ctx context.Context) error {
	if !loop.WaitSynced(ctx, p.log, p.Synced) || p.ledger.WaitReady(ctx) != nil {
		return nil
	}
	p.alarm = time.AfterFunc(time.Hour, func() { loop.Trigger(p.Trigger) })
	defer p.alarm.Stop()
	retry := loop.NewBackoff()
	for {
		if err := p.pass(ctx); err != nil && ctx.Err() == nil {
			wait := retry.Step()
			p.log.Warn("placement not written", "error", err, "retryIn", wait)
			if !loop.Sleep(ctx, wait) {
				return nil
			}
			continue
		}
		retry = loop.NewBackoff()
		if !p.next.IsZero() {
			p.alarm.Reset(time.Until(p.next))
		}
		if !loop.Sleep(ctx, p.pause()) || !p.liveness.Wait(ctx, "placement", p.Trigger) {
			return nil
		}
	}
}

// pause returns the pause before the next pass. A pass reads every Service: back-to-back passes in a burst would use a
// full CPU. They get a tenth of one, and a single change is placed at once.
func (p *Placer) pause() time.Duration { return min(9*p.passTook, time.Second) }

// wake schedules a pass at that time at the latest.
func (p *Placer) wake(at time.Time) {
	if p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// pass decides all lists and writes those that differ.
func (p *Placer) pass(ctx context.Context) error {
	start := time.Now()
	p.next = time.Time{}
	seen, err := p.virtualIPs(ctx)
	if err != nil {
		return err
	}
	have := p.writer.existing(start, seen)
	measureUnannounced(have)
	of, err := p.policies(ctx)
	if err != nil {
		return err
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	if err := p.readMoveTargets(ctx, nodes); err != nil {
		return err
	}
	ads, err := p.advertisements(ctx, of)
	if err != nil {
		return err
	}
	services, err := p.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	m := newMatcher(ads, nodes, p.ignoreExclude, of.labels, p.labelsOf)
	want := p.decide(start, unitsOf(services, p.ledger.Standing), m, of, have)
	p.withholdForeign(start, have)
	p.passTook = time.Since(start)
	newer, err := p.writer.write(ctx, have, want)
	if newer {
		p.wake(time.Now().Add(afterConflict))
	}
	if at := p.writer.expires(); !at.IsZero() {
		p.wake(at)
	}
	return errors.Join(err, p.acknowledge(ctx, of, have))
}

// labelsOf returns the labels of a Service.
func (p *Placer) labelsOf(key pools.ServiceKey) map[string]string {
	svc, err := p.services.Services(key.Namespace).Get(key.Name)
	if err != nil {
		return nil // deleted, and its unit will be
	}
	return svc.Labels
}

// decide returns the wanted VirtualIPs.
func (p *Placer) decide(now time.Time, units []unit, m *matcher, of policies, have map[string]*v1alpha1.VirtualIP) []wantedVIP {
	p.indexAddresses(have)
	var want []wantedVIP
	var requests []placement.Unit
	for _, u := range units {
		addresses, who := m.advertised(u)
		if len(addresses) == 0 {
			continue
		}
		u.addresses = addresses
		w := wantedVIP{name: u.name(), spec: specOf(u), pools: u.addresses, whyNone: who}
		list, owner := p.previous(u, have)
		want = append(want, w)
		requests = append(requests, placement.Unit{
			Name: w.name, Eligible: who.nodes, Weights: who.weights, All: u.local, Able: p.able(u, who), Previous: list, Owner: owner,
		})
	}
	known := make([]placement.Node, len(m.nodes))
	may := make([]placement.Node, 0, len(m.nodes))
	for i, n := range m.nodes {
		known[i] = placementNode(n)
		if m.excluded[n.Name] == "" {
			may = append(may, known[i])
		}
	}
	p.recordReports(now, have)
	settled := p.settled(now)
	p.exact = settled && now.Sub(p.changed) >= exactAfter
	p.mover.observe(now, may, p.targets)
	p.mover.permit(now, requests, want, of, have)
	p.mover.follow(now, requests, have)
	lists := p.placement.Place(requests, known, p.exact)
	if settled && p.mover.begin(now, requests, lists, may) {
		lists = p.placement.Place(requests, known, p.exact)
	}
	if at := p.mover.nextEvaluation(now); !at.IsZero() {
		p.wake(at)
	}
	p.keep(now, want, lists, may, have, settled)
	return want
}

// keep puts the lists into the wanted VirtualIPs and records them.
func (p *Placer) keep(now time.Time, want []wantedVIP, lists []placement.List, may []placement.Node, have map[string]*v1alpha1.VirtualIP, settled bool) {
	byName := make(map[string]placement.List, len(lists))
	led := map[string]int{}
	for _, n := range may {
		led[n.Name] = 0
	}
	for _, l := range lists {
		byName[l.Unit] = l
		if len(l.Nodes) > 0 {
			led[l.Nodes[0]]++
		}
		if l.Reason != placement.Unchanged {
			p.changed = now
		}
	}
	measureNodes(led)
	deferred := false
	clear(p.placed)
	for i := range want {
		w := &want[i]
		w.spec.Nodes, w.reason = byName[w.name].Nodes, byName[w.name].Reason
		if vip := have[w.name]; !settled && vip != nil && p.mayBeHeld(vip) && !sameSpec(vip.Spec, w.spec) {
			w.spec, deferred = vip.Spec, true
		}
		p.recordPlaced(w.name, w.spec)
	}
	if deferred && !p.deferred {
		p.log.Info("placement deferred until the speakers have reported the owners", "for", settleFor)
	}
	p.deferred = deferred
	if settled {
		clear(p.writer.made)
	} else {
		at, _ := p.settles()
		p.wake(at)
	}
	if settled && !p.exact {
		p.wake(p.changed.Add(exactAfter))
	}
}

// previous returns the list of the unit and its owner: by name, or by one of its addresses if its lowest address is
// new.
func (p *Placer) previous(u unit, have map[string]*v1alpha1.VirtualIP) (list []string, owner string) {
	names := []string{u.name()}
	for _, a := range u.addresses {
		if name, ok := p.of[a.Addr.String()]; ok {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if vip := have[name]; vip != nil {
			return vip.Spec.Nodes, vip.Status.Node
		}
		if list, ok := p.placed[name]; ok {
			return list, ""
		}
	}
	return nil, ""
}

// indexAddresses indexes the addresses of the existing VirtualIPs.
func (p *Placer) indexAddresses(have map[string]*v1alpha1.VirtualIP) {
	if p.placed == nil {
		p.placed = map[string][]string{}
	}
	before := p.of
	p.of = make(map[string]string, len(before))
	for a, name := range before { // of VirtualIPs that no longer exist
		if _, ok := p.placed[name]; ok {
			p.of[a] = name
		}
	}
	for name, vip := range have {
		for _, a := range vip.Spec.Addresses {
			p.of[a] = name
		}
	}
}

func (p *Placer) recordPlaced(name string, spec v1alpha1.VirtualIPSpec) {
	p.placed[name] = spec.Nodes
	for _, a := range spec.Addresses {
		p.of[a] = name
	}
}

func (p *Placer) virtualIPs(ctx context.Context) (map[string]*v1alpha1.VirtualIP, error) {
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

// specOf returns the spec of the unit's VirtualIP without the nodes.
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

// servicesOf lists the Services for users.
func servicesOf(spec v1alpha1.VirtualIPSpec) string {
	var names []string
	for _, s := range spec.Services {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return strings.Join(names, " ")
}
