package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

const (
	// writesPerSecond and writesBurst limit the writes of one speaker.
	writesPerSecond, writesBurst = 20, 50
	// relist is the interval of resyncs. They find foreign writes and failed writes, and do nothing if neither is
	// possible. No VirtualIP is written twice within it with the same content.
	relist = 5 * time.Second
	// afterConflict is the delay until the informer has the version that a write conflicted with.
	afterConflict = 200 * time.Millisecond
)

// Reporter writes the status of VirtualIPs, on change only.
type Reporter struct {
	store   cache.Store
	patch   func(ctx context.Context, name string, body []byte) error
	log     *slog.Logger
	limit   flowcontrol.RateLimiter
	wake    chan struct{}
	written map[string]sent
	failing bool
	// fresh reports whether this process's state may be written: after a stall another node may hold the address.
	fresh func() bool
	// published is called with every report before it is written.
	published func(map[string]report.VIPStatus)
	// events counts the changes of the store; nil if that is unknown.
	events func() uint64
	// settled are the state and the events at which every status was in the store.
	settled settled

	mu       sync.Mutex
	want     map[string]report.VIPStatus
	conflict Conflict
	// reports counts the changes of want and conflict.
	reports uint64
}

type settled struct{ reports, events uint64 }

// Conflict is a conflict between kube-proxy and the speaker of this node; the zero value is none.
type Conflict struct{ Reason, Message string }

// sent is the last write of a VirtualIP; the informer may not have it yet.
type sent struct {
	status   report.VIPStatus
	conflict Conflict
	at       time.Time
}

func newReporter(store cache.Store, patch func(context.Context, string, []byte) error, log *slog.Logger) *Reporter {
	return &Reporter{
		store:     store,
		patch:     patch,
		log:       log,
		limit:     flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writesBurst),
		wake:      make(chan struct{}, 1),
		written:   map[string]sent{},
		want:      map[string]report.VIPStatus{},
		fresh:     func() bool { return true },
		published: func(map[string]report.VIPStatus) {},
	}
}

// While makes the Reporter write only while fresh returns true. It must be called before Run.
func (r *Reporter) While(fresh func() bool) { r.fresh = fresh }

// patcher returns the function that patches the status of a VirtualIP.
func patcher(client *rest.RESTClient) func(context.Context, string, []byte) error {
	return func(ctx context.Context, name string, body []byte) error {
		return client.Patch(types.MergePatchType).Resource(kindVIP).Name(name).SubResource("status").Body(body).Do(ctx).Error()
	}
}

// Report implements speaker.Reporter.
func (r *Reporter) Report(statuses map[string]report.VIPStatus) {
	r.mu.Lock()
	changed := !reflect.DeepEqual(r.want, statuses)
	r.want = statuses
	if changed {
		r.reports++
	}
	r.mu.Unlock()
	if changed {
		r.published(statuses)
		r.trigger()
	}
}

// Conflict sets the kube-proxy conflict for every VirtualIP that this node reports.
func (r *Reporter) Conflict(c Conflict) {
	r.mu.Lock()
	changed := r.conflict != c
	r.conflict = c
	if changed {
		r.reports++
	}
	r.mu.Unlock()
	if changed {
		r.trigger()
	}
}

func (r *Reporter) trigger() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run writes until the context ends.
func (r *Reporter) Run(ctx context.Context) error {
	ticker := time.NewTicker(relist)
	defer ticker.Stop()
	for {
		var again <-chan time.Time
		if r.write(ctx) {
			again = time.After(afterConflict)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-again:
		case <-ticker.C:
		}
	}
}

// write writes every status that differs from the informer's, and reports whether a write conflicted with a newer
// version of its object. After another error the write is retried at the next resync.
func (r *Reporter) write(ctx context.Context) (newer bool) {
	r.mu.Lock()
	want, conflict, now := r.want, r.conflict, settled{reports: r.reports}
	r.mu.Unlock()
	if r.events != nil {
		now.events = r.events()
		if now == r.settled {
			return false
		}
	}
	r.settled = settled{}
	same := true
	maps.DeleteFunc(r.written, func(name string, _ sent) bool { _, ok := want[name]; return !ok })
	var failed error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if last, ok := r.written[name]; ok && time.Since(last.at) < relist && last.conflict == conflict && reflect.DeepEqual(last.status, want[name]) {
			same = false // the store may not have it yet
			continue
		}
		stored, err := r.writeOne(ctx, name, want[name], conflict)
		same = same && stored
		if err != nil {
			if ctx.Err() != nil {
				return false
			}
			if apierrors.IsConflict(err) {
				newer = true
				continue
			}
			failed = err
		}
	}
	if failed != nil && !r.failing {
		r.log.Warn("cannot write the status of VirtualIPs; trying again", "error", failed)
	}
	r.failing = failed != nil
	if same {
		r.settled = now
	}
	return newer
}

// writeOne writes a status, unless it is stored, or the VirtualIP does not exist.
func (r *Reporter) writeOne(
	ctx context.Context, name string, status report.VIPStatus, conflict Conflict,
) (stored bool, err error) {
	obj, exists, err := r.store.GetByKey(name)
	if err != nil || !exists {
		return err == nil, err
	}
	vip := obj.(*v1alpha1.VirtualIP)
	next := statusOf(vip, status, conflict, metav1.Now())
	if reflect.DeepEqual(next, vip.Status) {
		return true, nil
	}
	body, err := patchOf(vip, next)
	if err != nil {
		return false, fmt.Errorf("encode the status of VirtualIP %s: %w", name, err)
	}
	if !r.current(name, status) {
		return false, nil // the newer state comes next
	}
	if err := r.limit.Wait(ctx); err != nil {
		return false, err
	}
	if !r.current(name, status) {
		return false, nil
	}
	switch err := r.patch(ctx, name, body); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write the status of VirtualIP %s: %w", name, err)
	}
	r.written[name] = sent{status: status, conflict: conflict, at: time.Now()}
	return false, nil
}

// current reports whether a status is still the last reported one.
func (r *Reporter) current(name string, status report.VIPStatus) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, ok := r.want[name]
	return ok && reflect.DeepEqual(now, status) && r.fresh()
}

// temporary are the conditions that are present only while they are True.
var temporary = []string{v1alpha1.ConditionKubeProxyConflict, v1alpha1.ConditionConflict, v1alpha1.ConditionNotDirect}

// statusOf returns the expected status of the VirtualIP. Unchanged parts keep their time.
func statusOf(vip *v1alpha1.VirtualIP, status report.VIPStatus, conflict Conflict, now metav1.Time) v1alpha1.VirtualIPStatus {
	now = now.Rfc3339Copy()
	next := v1alpha1.VirtualIPStatus{Node: status.Node}
	announced := metav1.Condition{
		Type: v1alpha1.ConditionAnnounced, Status: metav1.ConditionFalse, Reason: string(status.Reason),
		Message: status.Message, ObservedGeneration: vip.Generation, LastTransitionTime: now,
	}
	if status.Announced {
		announced.Status = metav1.ConditionTrue
		next.Interfaces = status.Interfaces
		next.Since = &now
		if vip.Status.Node == status.Node && vip.Status.Since != nil {
			next.Since = vip.Status.Since
		}
	}
	for _, h := range status.Hosts {
		next.Conflicts = append(next.Conflicts, v1alpha1.AddressConflict{
			Address: h.Addr.String(), MAC: h.MAC, Interface: h.Interface,
		})
	}
	ours := []metav1.Condition{announced}
	if conflict != (Conflict{}) {
		ours = append(ours, metav1.Condition{
			Type: v1alpha1.ConditionKubeProxyConflict, Status: metav1.ConditionTrue, Reason: conflict.Reason,
			Message: conflict.Message, ObservedGeneration: vip.Generation, LastTransitionTime: now,
		})
	}
	if status.Conflict != "" {
		ours = append(ours, metav1.Condition{
			Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue, Reason: string(status.ConflictReason),
			Message: status.Conflict, ObservedGeneration: vip.Generation, LastTransitionTime: now,
		})
	}
	if status.NotDirect != "" {
		ours = append(ours, metav1.Condition{
			Type: v1alpha1.ConditionNotDirect, Status: metav1.ConditionTrue, Reason: string(status.NotDirectReason),
			Message: status.NotDirect, ObservedGeneration: vip.Generation, LastTransitionTime: now,
		})
	}
	for _, c := range vip.Status.Conditions {
		i := slices.IndexFunc(ours, func(o metav1.Condition) bool { return o.Type == c.Type })
		switch {
		case i >= 0:
			if c.Status == ours[i].Status {
				ours[i].LastTransitionTime = c.LastTransitionTime
			}
		case slices.Contains(temporary, c.Type): // no longer true
		case c.Type == v1alpha1.ConditionNoEligibleNode && status.Announced: // no longer true
		default:
			next.Conditions = append(next.Conditions, c)
		}
	}
	next.Conditions = append(next.Conditions, ours...)
	slices.SortFunc(next.Conditions, func(a, b metav1.Condition) int {
		if a.Type < b.Type {
			return -1
		}
		return 1
	})
	return next
}

// patchOf returns the merge patch that replaces the status of exactly this version of the object: null deletes a field.
func patchOf(vip *v1alpha1.VirtualIP, next v1alpha1.VirtualIPStatus) ([]byte, error) {
	fields := map[string]any{"node": nil, "interfaces": nil, "since": nil, "conflicts": nil, "conditions": next.Conditions}
	if next.Node != "" {
		fields["node"] = next.Node
	}
	if len(next.Interfaces) > 0 {
		fields["interfaces"] = next.Interfaces
	}
	if len(next.Conflicts) > 0 {
		fields["conflicts"] = next.Conflicts
	}
	if next.Since != nil {
		fields["since"] = next.Since
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": vip.ResourceVersion},
		"status":   fields,
	})
}

// VIPs writes Events about the Services of VirtualIPs that this node took over from another one. Each call passes the
// full set. ironlb-ccm warns of conflicts and of Services that are not forwarded directly, once for all nodes.
func (e *Events) VIPs(vips cache.Store, statuses map[string]report.VIPStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, status := range statuses {
		before := e.statuses[name]
		lost := status.Moved == view.OwnerLost && status.Cause != view.NoLocalEndpoint // else it followed the endpoint
		if status.Announced && !status.At.Equal(before.At) && (lost || status.Moved == view.TakenOver) {
			text := "node " + e.node + " answers for " + name
			if status.From != "" {
				text += " in place of node " + status.From
			}
			if status.Took > 0 {
				text += " after " + max(status.Took.Round(time.Millisecond), time.Millisecond).String()
			}
			if lost {
				text += ": " + causes[status.Cause]
			}
			e.aboutVIP(vips, name, corev1.EventTypeNormal, string(status.Moved), text)
		}
	}
	e.statuses = statuses
}

// causes explain why an earlier owner answers no more.
var causes = map[view.Reason]string{
	view.NodeNotAlive:    "its speaker is not received",
	view.Stopping:        "its speaker is being stopped",
	view.Excluded:        "it is excluded by label, being deleted or without a network",
	view.NoAdvertisement: "no L2Advertisement covers the address there any more",
	view.NodeDeclined:    "it released the address; see the log of its speaker",
}

// aboutVIP writes an Event about every Service of a VirtualIP. Reports before Run are not written: they are outdated
// then.
func (e *Events) aboutVIP(vips cache.Store, name, kind, reason, text string) {
	obj, exists, err := vips.GetByKey(name)
	if !e.running || err != nil || !exists {
		return
	}
	for _, ref := range obj.(*v1alpha1.VirtualIP).Spec.Services {
		if svc, exists, err := e.services.GetByKey(ref.Namespace + "/" + ref.Name); err == nil && exists {
			e.recorder.Event(svc.(*corev1.Service), kind, reason, text)
		}
	}
}
