package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
)

const (
	kindSpeakerStatus = "speakerstatuses"
	// nodeEvery is the minimum interval between two writes of the SpeakerStatus, nodeAgain the delay after a failed
	// one.
	nodeEvery, nodeAgain = time.Second, 5 * time.Second
	// nodeLast is the time limit for the last write, which delays only the end of the process.
	nodeLast = time.Second
	// gatewaysMost is the limit in the SpeakerStatus.
	gatewaysMost = 256
)

// NodeReporter writes the SpeakerStatus of this node, on change and at most once a second, and again if another program
// deletes or changes it. At the end it writes that the speaker has stopped.
type NodeReporter struct {
	node  string
	log   *slog.Logger
	write func(ctx context.Context, status v1alpha1.SpeakerStatusStatus) error
	wake  chan struct{}
	// peers are the BGPPeers.
	peers cache.Store
	// published is called with each report.
	published func(report.NodeStatus)

	mu   sync.Mutex
	want *report.NodeStatus
	// stored is the content that the API server has, as last written or received; nil for none or if unknown.
	stored []byte
	// liveness is nil until the scheduling class is known.
	liveness *v1alpha1.LivenessStatus
	// conditions are those of the last ReportConditions.
	conditions []metav1.Condition
	// since is when each member entered its state.
	since map[string]memberSince
}

type memberSince struct {
	state report.MemberState
	at    metav1.Time
}

func newNodeReporter(node string, write func(context.Context, v1alpha1.SpeakerStatusStatus) error, log *slog.Logger) *NodeReporter {
	return &NodeReporter{node: node, log: log, write: write, wake: make(chan struct{}, 1), since: map[string]memberSince{}}
}

// received records the SpeakerStatus that the API server has, nil for none.
func (r *NodeReporter) received(obj any) {
	var content []byte
	if o, is := obj.(*v1alpha1.SpeakerStatus); is {
		status := o.Status
		status.Updated = nil
		content = encode(status)
	}
	r.setStored(content)
	r.trigger()
}

func (r *NodeReporter) setStored(content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored = content
}

func (r *NodeReporter) trigger() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// ReportNode implements speaker.NodeReporter.
func (r *NodeReporter) ReportNode(status report.NodeStatus) {
	r.mu.Lock()
	r.want = &status
	now := metav1.Now().Rfc3339Copy()
	for name, state := range status.Members {
		if before, was := r.since[name]; !was || before.state != state {
			r.since[name] = memberSince{state: state, at: now}
		}
	}
	maps.DeleteFunc(r.since, func(name string, _ memberSince) bool { _, still := status.Members[name]; return !still })
	r.mu.Unlock()
	r.trigger()
	if r.published != nil {
		r.published(status)
	}
}

// ReportScheduling reports the scheduling class of the liveness thread, and why it is not Deadline.
func (r *NodeReporter) ReportScheduling(class, message string) {
	r.mu.Lock()
	r.liveness = &v1alpha1.LivenessStatus{SchedulingClass: v1alpha1.SchedulingClass(class), Message: message}
	r.mu.Unlock()
	r.trigger()
}

// ReportConditions reports the conditions of the node. An unchanged status keeps its transition time.
func (r *NodeReporter) ReportConditions(conditions []report.NodeCondition) {
	r.mu.Lock()
	next := slices.Clone(r.conditions) // a write of the last one may be under way
	for _, c := range conditions {
		status := metav1.ConditionFalse
		if c.True {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&next, metav1.Condition{Type: c.Type, Status: status, Reason: c.Reason, Message: c.Message})
	}
	r.conditions = next
	r.mu.Unlock()
	r.trigger()
}

// Run writes until the context ends, and then once more.
func (r *NodeReporter) Run(ctx context.Context) error {
	defer r.stopped(context.WithoutCancel(ctx))
	failed := ""
	for {
		status, ok := r.status(false)
		content := encode(status)
		r.mu.Lock()
		differs := ok && !bytes.Equal(content, r.stored)
		r.mu.Unlock()
		if !differs {
			select {
			case <-ctx.Done():
				return nil
			case <-r.wake:
			}
			continue
		}
		now := metav1.Now().Rfc3339Copy()
		status.Updated = &now
		pause := nodeEvery
		r.setStored(content) // before the write: another program's change may be received while it returns
		switch err := r.write(ctx, status); {
		case err == nil:
			failed = ""
		case ctx.Err() != nil:
			return nil
		default:
			if err.Error() != failed {
				r.log.Warn("cannot write the SpeakerStatus; trying again", "error", err)
			}
			failed, pause = err.Error(), nodeAgain
			r.setStored(nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// encode returns a status as it is sent and compared.
func encode(status v1alpha1.SpeakerStatusStatus) []byte {
	out, err := json.Marshal(status)
	if err != nil {
		panic(err) // a field that JSON cannot contain
	}
	return out
}

// stopped writes that the speaker ends. If that fails, the other speakers detect and report it.
func (r *NodeReporter) stopped(ctx context.Context) {
	status, ok := r.status(false)
	if !ok {
		return // nothing was reported yet
	}
	now := metav1.Now().Rfc3339Copy()
	status.Updated, status.Stopped = &now, &now
	ctx, end := context.WithTimeout(ctx, nodeLast)
	defer end()
	if err := r.write(ctx, status); err != nil {
		r.log.Info("cannot write that the speaker ends", "error", err)
	}
}

// slotsDifferMost is how many nodes with other slots are written: a node that is cut off differs from all.
const slotsDifferMost = 64

// Status returns the status of the node with all members, also in a large cluster. It is false before the first report.
func (r *NodeReporter) Status() (v1alpha1.SpeakerStatusStatus, bool) {
	return r.status(true)
}

// status returns what is to be written, without the time; with all members instead of the listed ones if all is set.
func (r *NodeReporter) status(all bool) (v1alpha1.SpeakerStatusStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.want == nil {
		return v1alpha1.SpeakerStatusStatus{}, false
	}
	w := r.want
	out := v1alpha1.SpeakerStatusStatus{
		DataPlane:  v1alpha1.DataPlaneStatus{Healthy: w.Healthy, Reason: string(w.Reason), Message: w.Message},
		VirtualIPs: int32(w.VirtualIPs),
		Liveness:   r.liveness,
		Conditions: r.conditions,
	}
	if t := w.Tunnels; t != nil {
		out.Tunnels = &v1alpha1.TunnelsStatus{
			Available: t.Unable == "", Message: cmp.Or(t.Unable, t.UnableIPv6), MTU: int32(t.MTU), VirtualServers: int32(t.VirtualServers),
			SlotsDiffer: w.SlotsDiffer[:min(len(w.SlotsDiffer), slotsDifferMost)],
		}
	}
	out.ReturnRoutes = returnRoutesOf(w.ReturnRoutes)
	for _, name := range slices.Sorted(maps.Keys(w.Links)) {
		on := v1alpha1.InterfaceStatus{Name: name, Up: true, MTU: int32(w.Links[name].MTU)}
		for _, p := range w.Links[name].Subnets {
			on.Subnets = append(on.Subnets, p.String())
		}
		slices.Sort(on.Subnets)
		on.Subnets = slices.Compact(on.Subnets)
		out.Interfaces = append(out.Interfaces, on)
	}
	for _, addr := range w.Gateways[:min(len(w.Gateways), gatewaysMost)] {
		out.Gateways = append(out.Gateways, addr.String())
	}
	alive, listed := 0, report.Listed(r.node, w.Members)
	if all {
		listed = func(string) bool { return true }
	}
	for _, name := range slices.Sorted(maps.Keys(w.Members)) {
		if !listed(name) {
			continue
		}
		since := r.since[name]
		out.Members = append(out.Members, v1alpha1.MemberStatus{Node: name, State: v1alpha1.MemberState(since.state), Since: &since.at})
		if since.state != report.MemberSilent {
			alive++
		}
	}
	reachStatus(&out, w, listed)
	out.BGP = withUnserved(bgpStatusOf(w.Sessions, w.Families, r.peers), w.Unserved)
	out.BGP = withNotDirect(out.BGP, w.NotDirect)
	out.Alive = fmt.Sprintf("%d/%d", alive, len(out.Members))
	return out, true
}

// nodeWriter returns the function that writes the status of a node's SpeakerStatus and creates the object if needed.
// The Node owns it, so that it is deleted with the Node; without a Node none is created.
func nodeWriter(client *rest.RESTClient, name string, nodes cache.Store) func(context.Context, v1alpha1.SpeakerStatusStatus) error {
	return func(ctx context.Context, status v1alpha1.SpeakerStatusStatus) error {
		body := slices.Concat([]byte(`[{"op": "add", "path": "/status", "value": `), encode(status), []byte(`}]`))
		patch := func() error {
			return client.Patch(types.JSONPatchType).Resource(kindSpeakerStatus).Name(name).SubResource("status").Body(body).Do(ctx).Error()
		}
		err := patch()
		if node, exists, _ := nodes.GetByKey(name); exists && apierrors.IsNotFound(err) {
			made := &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: name, UID: node.(*corev1.Node).UID},
			}}}
			if err = client.Post().Resource(kindSpeakerStatus).Body(made).Do(ctx).Error(); err == nil || apierrors.IsAlreadyExists(err) {
				err = patch()
			}
		}
		if err != nil {
			return fmt.Errorf("write the SpeakerStatus %s: %w", name, err)
		}
		return nil
	}
}
