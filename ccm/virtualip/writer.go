package virtualip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/loglines"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// wantedVIP is the wanted state of a VirtualIP.
type wantedVIP struct {
	name   string
	spec   v1alpha1.VirtualIPSpec
	reason placement.Reason
	// pools are those of the addresses; whyNone explains an empty list of nodes.
	pools   []pools.Address
	whyNone match
}

// vipWrites is the number of concurrent writes of VirtualIPs: enough to keep up with the Services, at one VirtualIP per
// Service.
const vipWrites = 8

// unseenFor is how long an object written by this process counts although it is not in the cache: many times the usual
// delay of a watch. After a break of the watch the cache lists again, and never shows an object that was created and
// deleted meanwhile.
const unseenFor = 15 * time.Second

// writtenVIP is a VirtualIP as returned by the API server in a pass.
type writtenVIP struct {
	vip *v1alpha1.VirtualIP
	at  time.Time
}

// vipWriter reconciles the VirtualIPs. It records its writes until the cache has caught up, so that nothing is written
// twice.
type vipWriter struct {
	lines  *loglines.Lines
	events record.EventRecorder
	client client.Client
	atOnce int

	mu      sync.Mutex            // protects the maps, while several are written
	now     time.Time             // of the pass
	written map[string]writtenVIP // not in the cache yet
	deleted map[string]types.UID
	lost    map[types.UID]struct{}  // deleted from the cache since the last pass
	made    map[types.UID]time.Time // time of its creation by this process; the placer clears it once all has settled
	// conditioned is the cached version of each object when its condition was written.
	conditioned map[string]string
	newer       bool   // a write conflicted with a newer version of its object
	tick        func() // called periodically while it writes
}

func newVIPWriter(log *slog.Logger, events record.EventRecorder, cl client.Client, tick func()) *vipWriter {
	return &vipWriter{
		lines: loglines.New(log), events: events, client: cl, atOnce: vipWrites, tick: tick,
		written: map[string]writtenVIP{}, deleted: map[string]types.UID{}, lost: map[types.UID]struct{}{},
		made: map[types.UID]time.Time{}, conditioned: map[string]string{},
	}
}

// write reconciles the existing VirtualIPs (see existing) with the wanted ones. It adds and changes before it deletes.
// A failure does not delay the others. newer: an object has changed since it was read, mostly by a speaker, and is left
// for the next pass.
func (w *vipWriter) write(ctx context.Context, have map[string]*v1alpha1.VirtualIP, want []wantedVIP) (newer bool, err error) {
	defer w.lines.Flush()
	w.newer = false
	failed := w.each(len(want), func(i int) error { return w.ensure(ctx, have[want[i].name], want[i]) })
	wanted := make(map[string]struct{}, len(want))
	for _, v := range want {
		wanted[v.name] = struct{}{}
	}
	var gone []string
	for name := range have {
		if _, ok := wanted[name]; !ok {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	failed = errors.Join(failed, w.each(len(gone), func(i int) error { return w.remove(ctx, have[gone[i]]) }))
	return w.newer, failed
}

// each calls do for 0 to n-1, some concurrently, and returns when all have ended.
func (w *vipWriter) each(n int, do func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(n, w.atOnce) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				w.tick()
				errs[i] = do(i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// update changes the records.
func (w *vipWriter) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// deletionSeen records that the cache has seen the deletion of an object. A VirtualIP deleted right after its creation
// is in the cache at no pass. Without this record it would count as not in the cache yet until unseenFor has passed.
func (w *vipWriter) deletionSeen(uid types.UID) {
	w.update(func() { w.lost[uid] = struct{}{} })
}

// existing returns the existing VirtualIPs at a pass: the cache, corrected by own writes that it does not show yet.
func (w *vipWriter) existing(now time.Time, seen map[string]*v1alpha1.VirtualIP) map[string]*v1alpha1.VirtualIP {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer clear(w.lost)
	w.now = now
	have := maps.Clone(seen)
	for name, uid := range w.deleted {
		if v, ok := seen[name]; ok && v.UID == uid {
			delete(have, name)
			continue
		}
		delete(w.deleted, name)
	}
	for name, v := range w.written {
		_, lost := w.lost[v.vip.UID]
		late := !now.Before(v.at.Add(unseenFor))
		if s, ok := seen[name]; lost || late || ok && s.UID == v.vip.UID && s.Generation >= v.vip.Generation {
			delete(w.written, name)
			continue
		}
		have[name] = v.vip
	}
	return have
}

// wrote records the object until the cache shows it. The caller holds the lock.
func (w *vipWriter) wrote(vip *v1alpha1.VirtualIP) { w.written[vip.Name] = writtenVIP{vip, w.now} }

// expires returns when the next pass is needed at the latest, because a written object may no longer exist. Zero: the
// cache shows all.
func (w *vipWriter) expires() (at time.Time) {
	w.update(func() {
		for _, v := range w.written {
			if until := v.at.Add(unseenFor); at.IsZero() || until.Before(at) {
				at = until
			}
		}
	})
	return at
}

// ensure creates or changes one VirtualIP and writes its condition.
func (w *vipWriter) ensure(ctx context.Context, have *v1alpha1.VirtualIP, want wantedVIP) error {
	switch {
	case have == nil:
		vip := &v1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: want.name}, Spec: want.spec}
		if err := w.client.Create(ctx, vip); err != nil {
			return fmt.Errorf("creating VirtualIP %s: %w", want.name, err)
		}
		countPlacement(want.reason)
		w.lines.Add(slog.LevelInfo, "address placed", "vip", want.name, "services", servicesOf(want.spec), "nodes", want.spec.Nodes, "reason", want.reason)
		w.update(func() { w.wrote(vip); w.made[vip.UID] = time.Now() })
		have = vip
	case !sameSpec(have.Spec, want.spec):
		vip := have.DeepCopy()
		vip.Spec = want.spec
		// Against the version that was read: a newer status may name another owner.
		err := w.client.Patch(ctx, vip, client.MergeFromWithOptions(have, client.MergeFromWithOptimisticLock{}))
		switch {
		case apierrors.IsConflict(err):
			w.update(func() { w.newer = true })
			return nil
		case apierrors.IsNotFound(err):
			w.update(func() { delete(w.written, want.name) }) // deleted by another writer: the next pass creates it
		}
		if err != nil {
			return fmt.Errorf("changing VirtualIP %s: %w", want.name, err)
		}
		countPlacement(want.reason)
		w.lines.Add(slog.LevelInfo, "placement changed", "vip", want.name, "services", servicesOf(want.spec), "nodes", want.spec.Nodes,
			"before", have.Spec.Nodes, "reason", want.reason)
		w.update(func() { w.wrote(vip) })
		w.publish(vip, have, want.reason)
		have = vip
	}
	return w.condition(ctx, have, want.whyNone)
}

// publish writes an Event for a new placement. The speakers report their own elections, and the mover reports moves.
func (w *vipWriter) publish(vip, before *v1alpha1.VirtualIP, why placement.Reason) {
	switch why {
	case placement.OwnerNotEligible, placement.OwnerNotReady, placement.OwnerCordoned:
		if len(vip.Spec.Nodes) > 0 {
			w.events.Eventf(vip, v1.EventTypeNormal, string(why), "placed on node %s instead of node %s", vip.Spec.Nodes[0], before.Spec.Nodes[0])
		}
	}
}

// sameSpec is called for every VirtualIP in every pass: reflection takes most of its time.
func sameSpec(a, b v1alpha1.VirtualIPSpec) bool {
	return slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Services, b.Services) && slices.Equal(a.Nodes, b.Nodes)
}

// condition sets the condition that no node is eligible, and clears it. The speakers write the other conditions, so
// only this one is sent, by server-side apply.
func (w *vipWriter) condition(ctx context.Context, vip *v1alpha1.VirtualIP, why match) error {
	want := metav1.Condition{
		Type: v1alpha1.ConditionNoEligibleNode, Status: metav1.ConditionFalse, Reason: reasonNodesEligible,
		LastTransitionTime: metav1.Now(), ObservedGeneration: vip.Generation,
	}
	if len(vip.Spec.Nodes) == 0 {
		if why.reason == "" {
			return nil // the list waits until all has settled
		}
		want.Status, want.Reason, want.Message = metav1.ConditionTrue, why.reason, why.message
	}
	is := meta.FindStatusCondition(vip.Status.Conditions, want.Type)
	same := want.Status == metav1.ConditionFalse && (is == nil || is.Status == metav1.ConditionFalse) ||
		is != nil && is.Status == want.Status && is.Reason == want.Reason && is.Message == want.Message
	if same {
		w.update(func() { delete(w.conditioned, vip.Name) })
		return nil
	}
	if is != nil && is.Status == want.Status {
		want.LastTransitionTime = is.LastTransitionTime
	}
	var done string
	w.update(func() { done = w.conditioned[vip.Name] })
	if done == vip.ResourceVersion {
		return nil // written, and not in the cache yet
	}
	apply, err := statusApply(vip, want)
	if err != nil {
		return err
	}
	if err := w.client.Status().Apply(ctx, apply, client.FieldOwner(v1alpha1.ControllerName), client.ForceOwnership); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing condition %s of VirtualIP %s: %w", want.Type, vip.Name, err)
	}
	w.update(func() { w.conditioned[vip.Name] = vip.ResourceVersion })
	w.lines.Add(slog.LevelInfo, "condition changed", "vip", vip.Name, "condition", want.Type, "status", want.Status, "reason", want.Reason)
	if want.Status == metav1.ConditionTrue {
		w.events.Event(vip, v1.EventTypeWarning, v1alpha1.ConditionNoEligibleNode, want.Message)
	}
	return nil
}

// acknowledge removes the annotation that requests a move.
func (w *vipWriter) acknowledge(ctx context.Context, vip *v1alpha1.VirtualIP) error {
	after := vip.DeepCopy()
	delete(after.Annotations, v1alpha1.AnnotationRebalance)
	err := w.client.Patch(ctx, after, client.MergeFromWithOptions(vip, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // the newer version triggers another pass
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing annotation %s from VirtualIP %s: %w", v1alpha1.AnnotationRebalance, vip.Name, err)
	}
	return nil
}

// statusApply is the patch that sets one condition of the object, if it is still the same object.
func statusApply(vip *v1alpha1.VirtualIP, cond metav1.Condition) (runtime.ApplyConfiguration, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&cond)
	if err != nil {
		return nil, fmt.Errorf("encoding condition %s of VirtualIP %s: %w", cond.Type, vip.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{fields}}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("VirtualIP"))
	u.SetName(vip.Name)
	u.SetUID(vip.UID)
	return client.ApplyConfigurationFromUnstructured(u), nil
}

// remove deletes a VirtualIP without Services.
func (w *vipWriter) remove(ctx context.Context, vip *v1alpha1.VirtualIP) error {
	err := w.client.Delete(ctx, vip, client.Preconditions{UID: &vip.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting VirtualIP %s: %w", vip.Name, err)
	}
	w.update(func() {
		delete(w.written, vip.Name)
		delete(w.conditioned, vip.Name)
		w.deleted[vip.Name] = vip.UID
	})
	w.lines.Add(slog.LevelInfo, "address withdrawn", "vip", vip.Name, "services", servicesOf(vip.Spec))
	return nil
}

var virtualIPs = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_node_virtual_ips",
	Help:           "VirtualIPs that are placed on a node first.",
	StabilityLevel: metrics.ALPHA,
}, []string{"node"})

var placements = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "ironlb_ccm_placements_total",
	Help:           "placements of virtualIPs that were written, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

var unannounced = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "ironlb_ccm_unannounced_virtual_ips",
	Help:           "VirtualIPs that no node announces, by reason.",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

// Metrics are all metrics of this package. They are registered when the first of them is measured.
var Metrics = []metrics.Registerable{virtualIPs, placements, unannounced}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics...) })

// measureNodes sets how many lists each node leads.
func measureNodes(led map[string]int) {
	register()
	virtualIPs.Reset()
	for node, n := range led {
		virtualIPs.WithLabelValues(node).Set(float64(n))
	}
}

// notReported is the reason of a VirtualIP about which no speaker has reported.
const notReported = "NotReported"

// measureUnannounced sets the number of VirtualIPs without an owner, by the reason that a speaker reports.
func measureUnannounced(all map[string]*v1alpha1.VirtualIP) {
	register()
	counts := map[string]int{}
	for _, vip := range all {
		switch c := meta.FindStatusCondition(vip.Status.Conditions, v1alpha1.ConditionAnnounced); {
		case len(vip.Spec.Nodes) == 0:
			counts[string(placement.NoEligibleNode)]++
		case c == nil:
			counts[notReported]++
		case c.Status != metav1.ConditionTrue:
			counts[c.Reason]++
		}
	}
	unannounced.Reset()
	for reason, n := range counts {
		unannounced.WithLabelValues(reason).Set(float64(n))
	}
}

// countPlacement counts a list that was written.
func countPlacement(why placement.Reason) {
	register()
	placements.WithLabelValues(string(why)).Inc()
}
