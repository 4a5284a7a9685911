// Package bgpstatus writes the status of BGPPeers and BGPAdvertisements.
//
// One goroutine, Controller, lists all objects that BGP depends on at each pass, and writes what differs.
// evaluatePeer and evaluateAdvertisements are pure. A peer is Established when every node that selects it has a
// session by the report of its speaker; a node whose report is outdated, or whose speaker is absent, counts as
// unknown. An advertisement is Ready when all that it names exists, no other one contradicts it, and its prefixes
// hold only addresses that it selects.
package bgpstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Controller writes the status of BGPPeers and BGPAdvertisements. One goroutine owns its state; informers only trigger
// it.
type Controller struct {
	log      *slog.Logger
	events   record.EventRecorder
	client   client.Client
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	Synced   []cache.InformerSynced
	Liveness *loop.Liveness
	trigger  chan struct{}

	// written is the cached version of each object when its status was written. The object is not written again before
	// the cache has a newer one.
	written map[types.UID]string
	// published are the problems for which an Event has been written.
	published map[types.UID]string

	// profiles are the BFDProfiles that peers name, as JSON, with those that were deleted since.
	profiles map[string]string
	absences absences
	unserved unserved
	// due triggers a pass when an absent speaker or an unserved address starts to count.
	due *time.Timer
}

// bgpObjects are all objects that the status of BGP depends on.
type bgpObjects struct {
	peers       v1alpha1.BGPPeerList
	ads         v1alpha1.BGPAdvertisementList
	profiles    v1alpha1.BFDProfileList
	communities v1alpha1.CommunityList
	speakers    v1alpha1.SpeakerStatusList
	absent      map[string]v1alpha1.Absence // of the speakers, by node
	pools       v1alpha1.IPAddressPoolList
	nodes       []*v1.Node
	services    []*v1.Service
}

// sumEvery is the minimum interval between two passes over all sessions: each speaker may report once a second.
const sumEvery = time.Second

func New(log *slog.Logger, events record.EventRecorder, c client.Client, services corelisters.ServiceLister, nodes corelisters.NodeLister) *Controller {
	b := &Controller{
		log: log, events: events, client: c, services: services, nodes: nodes, trigger: make(chan struct{}, 1),
		written: map[types.UID]string{}, published: map[types.UID]string{},
	}
	b.due = time.AfterFunc(time.Hour, func() { loop.Trigger(b.trigger) })
	b.due.Stop()
	return b
}

// Handler triggers a pass when an object changed in a relevant field.
func (b *Controller) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { loop.Trigger(b.trigger) },
		DeleteFunc: func(any) { loop.Trigger(b.trigger) },
		UpdateFunc: func(before, after any) {
			same := false
			switch before := before.(type) {
			case *v1.Service:
				after := after.(*v1.Service)
				same = !watch.ServiceChanged(before, after) && before.Spec.ExternalTrafficPolicy == after.Spec.ExternalTrafficPolicy &&
					before.Annotations[v1alpha1.AnnotationForwarding] == after.Annotations[v1alpha1.AnnotationForwarding]
			case *v1.Node:
				after := after.(*v1.Node)
				same = labels.Equals(before.Labels, after.Labels) && watch.StatusUnknown(before) == watch.StatusUnknown(after) &&
					watch.ExclusionReason(before, b.unserved.ignoreExclude) == watch.ExclusionReason(after, b.unserved.ignoreExclude)
			case *v1alpha1.IPAddressPool:
				same = !watch.PoolChanged(before, after.(*v1alpha1.IPAddressPool))
			case *v1alpha1.SpeakerStatus:
				same = reflect.DeepEqual(before.Status, after.(*v1alpha1.SpeakerStatus).Status) // trimmed
			case *discoveryv1.EndpointSlice:
				same = reflect.DeepEqual(before.Endpoints, after.(*discoveryv1.EndpointSlice).Endpoints) // trimmed
			}
			if !same {
				loop.Trigger(b.trigger)
			}
		},
	}
}

// Watch registers the handler.
func (b *Controller) Watch(ctx context.Context, core informers.SharedInformerFactory, kinds watch.Kinds) error {
	for _, inf := range []cache.SharedIndexInformer{core.Core().V1().Services().Informer(), core.Core().V1().Nodes().Informer()} {
		reg, err := inf.AddEventHandler(b.Handler())
		if err != nil {
			return fmt.Errorf("watching Services and Nodes: %w", err)
		}
		b.Synced = append(b.Synced, reg.HasSynced)
	}
	own, err := kinds.WatchAll(ctx, b.Handler(),
		&v1alpha1.BGPPeer{}, &v1alpha1.BGPAdvertisement{}, &v1alpha1.BFDProfile{}, &v1alpha1.Community{}, &v1alpha1.SpeakerStatus{}, &v1alpha1.IPAddressPool{})
	b.Synced = append(b.Synced, own...)
	return err
}

// Run returns when ctx ends.
func (b *Controller) Run(ctx context.Context) error {
	slow := time.AfterFunc(15*time.Second, func() {
		b.log.Error("waiting for the initial lists of BGP objects: their conditions are not written until then",
			"remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	})
	synced := cache.WaitForCacheSync(ctx.Done(), b.Synced...)
	slow.Stop()
	if !synced {
		return nil
	}
	retry, failed := loop.NewBackoff(), ""
	for {
		err := b.pass(ctx)
		switch {
		case err == nil:
			retry, failed = loop.NewBackoff(), ""
		case ctx.Err() != nil:
			return nil
		default:
			if err.Error() != failed {
				b.log.Warn("writing the status of BGP objects failed, retrying", "error", err, "remediation", "if it is forbidden or invalid, apply deploy/ironlb.yaml, or upgrade the Helm release")
			}
			failed = err.Error()
			b.Liveness.Tick("bgp")
			if !loop.Sleep(ctx, max(retry.Step(), sumEvery)) {
				return nil
			}
			continue
		}
		if !loop.Sleep(ctx, sumEvery) || !b.Liveness.Wait(ctx, "bgp", b.trigger) {
			return nil
		}
	}
}

// observe lists the objects from the cache. Peers and advertisements are copies; all other objects belong to the cache.
func (b *Controller) observe(ctx context.Context) (o bgpObjects, err error) {
	for _, list := range []client.ObjectList{&o.peers, &o.ads} {
		if err := b.client.List(ctx, list); err != nil {
			return o, fmt.Errorf("listing %T from the cache: %w", list, err)
		}
	}
	for _, list := range []client.ObjectList{&o.profiles, &o.communities, &o.speakers, &o.pools} {
		if err := b.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return o, fmt.Errorf("listing %T from the cache: %w", list, err)
		}
	}
	if o.nodes, err = b.nodes.List(labels.Everything()); err != nil {
		return o, fmt.Errorf("listing Nodes: %w", err)
	}
	if o.services, err = b.services.List(labels.Everything()); err != nil {
		return o, fmt.Errorf("listing Services: %w", err)
	}
	return o, nil
}

// pass evaluates all peers and advertisements, and writes what differs.
func (b *Controller) pass(ctx context.Context) error {
	o, err := b.observe(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	recheck := b.recordAbsent(&o, now)
	written, published := b.written, b.published
	b.written, b.published = map[types.UID]string{}, map[types.UID]string{}
	var errs []error
	lasts := b.deletedProfiles(&o)
	for i := range o.peers.Items {
		peer := &o.peers.Items[i]
		last := lasts[peer.Name]
		ready, established, sessions := evaluatePeer(peer, last, &o)
		b.publish(peer, ready, published)
		differs := meta.SetStatusCondition(&peer.Status.Conditions, ready)
		differs = meta.SetStatusCondition(&peer.Status.Conditions, established) || differs || peer.Status.Sessions != sessions || peer.Status.LastBFDProfile != last
		if differs {
			status := map[string]any{"conditions": peer.Status.Conditions, "sessions": sessions, "lastBFDProfile": nil} // null removes it
			if last != "" {
				status["lastBFDProfile"] = last
			}
			errs = append(errs, b.write(ctx, peer, status, written))
		}
	}
	ready, ads := evaluateAdvertisements(&o)
	before := make([][]v1alpha1.UnservedStatus, len(ads))
	for i := range o.ads.Items {
		before[i] = o.ads.Items[i].Status.Unserved
	}
	if b.unserved.ready != nil && b.unserved.ready() {
		if at := b.unserved.update(&o, ads, now); at > 0 && (recheck == 0 || at < recheck) {
			recheck = at
		}
	}
	for i := range o.ads.Items {
		ad := &o.ads.Items[i]
		b.publish(ad, ready[ad.Name], published)
		differs := meta.SetStatusCondition(&ad.Status.Conditions, ready[ad.Name])
		if differs || !reflect.DeepEqual(before[i], ad.Status.Unserved) {
			status := map[string]any{"conditions": ad.Status.Conditions, "unserved": ad.Status.Unserved} // null removes it
			errs = append(errs, b.write(ctx, ad, status, written))
		}
	}
	b.due.Stop()
	if recheck > 0 {
		b.due.Reset(recheck)
	}
	return errors.Join(errs...)
}

// deletedProfiles returns, by peer, the last version of its BFDProfile that was deleted, as JSON: as known to this
// process, else as recorded by an earlier one.
func (b *Controller) deletedProfiles(o *bgpObjects) map[string]string {
	known := make(map[string]string, len(o.profiles.Items))
	for i := range o.profiles.Items {
		p := v1alpha1.BFDProfile{ObjectMeta: metav1.ObjectMeta{Name: o.profiles.Items[i].Name}, Spec: o.profiles.Items[i].Spec}
		text, _ := json.Marshal(p) // it came from JSON
		known[p.Name] = string(text)
	}
	exist, before, out := maps.Clone(known), b.profiles, map[string]string{}
	for i := range o.peers.Items {
		peer, last := &o.peers.Items[i], v1alpha1.BFDProfile{}
		name := peer.Spec.BFDProfile
		if _, exists := exist[name]; exists || name == "" {
			continue
		}
		if was, ok := before[name]; ok {
			out[peer.Name], known[name] = was, was
		} else if json.Unmarshal([]byte(peer.Status.LastBFDProfile), &last) == nil && last.Name == name {
			out[peer.Name] = peer.Status.LastBFDProfile
		}
	}
	b.profiles = known
	return out
}

// recordAbsent adds the absent speakers to o, and returns the delay until the next evaluation. Reports of speakers
// about each other count only if the node's status is known.
func (b *Controller) recordAbsent(o *bgpObjects, now time.Time) (recheck time.Duration) {
	live := make(map[string]bool, len(o.nodes))
	for _, n := range o.nodes {
		live[n.Name] = !watch.StatusUnknown(n)
	}
	absent := v1alpha1.Absent(o.speakers.Items, func(node string) bool { return live[node] })
	o.absent, recheck = b.absences.evaluate(absent, now)
	return recheck
}

// publish writes an Event about a configuration that cannot be used, once per change. The speakers write the Events
// about sessions.
func (b *Controller) publish(obj client.Object, ready metav1.Condition, before map[types.UID]string) {
	if ready.Status != metav1.ConditionFalse {
		return
	}
	if b.published[obj.GetUID()] = ready.Message; before[obj.GetUID()] != ready.Message {
		b.events.Event(obj, v1.EventTypeWarning, ready.Reason, ready.Message)
	}
}

// write patches the status of an object, unless the cache does not have the last write yet.
func (b *Controller) write(ctx context.Context, obj client.Object, status any, written map[types.UID]string) error {
	uid, version, name := obj.GetUID(), obj.GetResourceVersion(), obj.GetName()
	b.written[uid] = version
	if written[uid] == version {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		err = client.IgnoreNotFound(b.client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch)))
	}
	if err != nil {
		delete(b.written, uid)
		return fmt.Errorf("writing the status of %T %s: %w", obj, name, err)
	}
	return nil
}

// Reasons why no node serves an address that a BGPAdvertisement covers. A node without an endpoint announces nothing
// for policy Local while another one does, and one without a peer announces nothing at all: both are as expected, and
// only the state of all nodes shows whether an address is served.
const (
	reasonNoPeer          = "NoPeer"
	reasonNoSession       = "NoSession"
	reasonExcluded        = "Excluded"
	reasonNoLocalEndpoint = "NoLocalEndpoint"
	reasonNoEndpoint      = "NoEndpoint"
)

// unservedMessages explain each reason and its remediation.
var unservedMessages = map[string]string{
	reasonNoLocalEndpoint: "no node announces it: externalTrafficPolicy is Local, and no node that may announce it " +
		"has an endpoint of the Service (of each Service, if several share the address); start a Pod there, or use Cluster",
	reasonNoEndpoint: "it is announced, and connections are refused: the Service has no endpoint that is ready",
	reasonNoPeer: "no node announces it: no node that the BGPAdvertisement covers has a BGPPeer that it names and that takes addresses of the family; " +
		"check the condition Ready of both, and their nodeSelectors",
	reasonNoSession: "no node announces it: no node that may announce it has an established session with a BGPPeer that the BGPAdvertisement names " +
		"and that takes addresses of the family; see the condition Established of the BGPPeers",
	reasonExcluded: "no node announces it: every node that the BGPAdvertisement covers is excluded by label, being deleted or has no network",
}

var unservedAddresses = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_ccm_bgp_unserved_addresses",
	Help:           "Addresses covered by a BGPAdvertisement that no node serves, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{unservedAddresses}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureUnserved sets the number of unserved addresses by reason. Each reason is present, so that alerts can rely on
// it.
func measureUnserved(all map[string][]netip.Addr) {
	register()
	for reason := range unservedMessages {
		unservedAddresses.WithLabelValues(reason).Set(float64(len(all[reason])))
	}
}
