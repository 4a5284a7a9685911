package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
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
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
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

// notProgrammed is the message for an address that the node could not program.
const notProgrammed = "this node does not announce it: it could not be programmed; see /readyz of the speaker"

// withNotDirect adds the addresses that only BGP announces and that are not forwarded directly.
func withNotDirect(out *v1alpha1.BGPStatus, addrs map[view.Reason]report.NotDirect) *v1alpha1.BGPStatus {
	if len(addrs) == 0 {
		return out
	}
	if out == nil {
		out = &v1alpha1.BGPStatus{}
	}
	for _, reason := range slices.Sorted(maps.Keys(addrs)) {
		of := addrs[reason]
		out.NotDirect = append(out.NotDirect, v1alpha1.NewUnservedStatus(string(reason), of.Message, of.Addresses))
	}
	return out
}

// withUnserved adds the addresses that the node could not program, the lowest ones of each reason.
func withUnserved(out *v1alpha1.BGPStatus, unserved map[view.Reason][]netip.Addr) *v1alpha1.BGPStatus {
	if len(unserved) == 0 {
		return out
	}
	if out == nil {
		out = &v1alpha1.BGPStatus{}
	}
	for _, reason := range slices.Sorted(maps.Keys(unserved)) {
		out.Unserved = append(out.Unserved, v1alpha1.NewUnservedStatus(string(reason), notProgrammed, unserved[reason]))
	}
	return out
}

// Reasons of the Events about BGPPeers, in addition to those of routes.Session.
const (
	// SessionUp: a session of this node came up.
	SessionUp = "SessionUp"
	// SessionDown: an established session of this node ended.
	SessionDown = "SessionDown"
	// BFDUp: BFD of a session came up. The end of the BGP session also reports that BFD went down.
	BFDUp = "BFDUp"
)

// bgpStatusOf returns the status of the sessions; nil for none.
func bgpStatusOf(sessions map[string]routes.Session, families map[string]report.SessionFamilies, peers cache.Store) *v1alpha1.BGPStatus {
	if len(sessions) == 0 {
		return nil
	}
	out, up := &v1alpha1.BGPStatus{}, 0
	for _, name := range slices.Sorted(maps.Keys(sessions)) {
		s := sessions[name]
		state := v1alpha1.SessionState(s.State)
		if state == "" { // never tried
			state = v1alpha1.SessionState(routes.SessionIdle)
		}
		to := v1alpha1.SessionStatus{
			Peer: name, State: state, Since: timeOf(s.Since), Reason: string(s.Reason), Message: s.Message,
			Prefixes: int32(s.Prefixes), PeerASN: int64(s.PeerASN),
		}
		if families[name].IPv4 {
			to.Families = append(to.Families, corev1.IPv4Protocol)
		}
		if families[name].IPv6 {
			to.Families = append(to.Families, corev1.IPv6Protocol)
		}
		if peer := peerNamed(peers, name); peer != nil {
			to.Address = peer.Spec.PeerAddress
		}
		if s.PeerID.IsValid() {
			to.PeerID = s.PeerID.String()
		}
		if s.BFD != "" {
			to.BFD = &v1alpha1.BFDStatus{State: v1alpha1.BFDState(s.BFD), Since: timeOf(s.BFDSince), Reason: string(s.BFDReason), Message: s.BFDMessage}
		}
		if s.State == routes.SessionEstablished {
			up++
		}
		out.Sessions = append(out.Sessions, to)
	}
	out.Established = fmt.Sprintf("%d/%d", up, len(sessions))
	return out
}

// timeOf returns the time as it is stored, in full seconds; nil for none.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}

// peerNamed returns the BGPPeer, nil if it does not exist.
func peerNamed(peers cache.Store, name string) *v1alpha1.BGPPeer {
	if peers == nil {
		return nil
	}
	obj, exists, err := peers.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	return obj.(*v1alpha1.BGPPeer)
}

// recordedSession is what has been reported about a session.
type recordedSession struct {
	routes.Session
	// reason and message explain why it is not established.
	reason  view.Reason
	message string
}

// Sessions writes Events about BGPPeers: a session of this node was established, ended, cannot be established, or is
// without BFD, and why. It also reports that BFD came up. Each call passes the full set.
func (e *Events) Sessions(peers cache.Store, sessions map[string]routes.Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers, e.latest = peers, sessions
	e.recordSessions()
}

// recordSessions reports what changed in the latest sessions. Calls before Run are reported by Run.
func (e *Events) recordSessions() {
	if !e.running || e.latest == nil {
		return
	}
	peers, sessions := e.peers, e.latest
	now := make(map[string]recordedSession, len(sessions))
	for name, s := range sessions {
		before, was := e.sessions[name]
		now[name] = e.session(peerNamed(peers, name), s, before, was)
	}
	e.sessions = now
}

// session reports what changed in one session, and returns what has been reported about it.
func (e *Events) session(peer *v1alpha1.BGPPeer, s routes.Session, before recordedSession, was bool) recordedSession {
	up, wasUp := s.State == routes.SessionEstablished, before.State == routes.SessionEstablished
	event := func(kind, reason, text string) {
		if peer != nil {
			e.recorder.Event(peer, kind, reason, "node "+e.node+": "+text)
		}
	}
	recorded := recordedSession{Session: s, reason: before.reason, message: before.message}
	switch {
	case up:
		recorded.reason, recorded.message = "", ""
		if s.Reason == routes.NotConfigured { // the session works, but not all of the BGPPeer's spec; any other reason is outdated
			recorded.reason, recorded.message = s.Reason, s.Message
			if before.reason != s.Reason || before.message != s.Message {
				event(corev1.EventTypeWarning, string(s.Reason), s.Message)
			}
		}
		again := wasUp && s.Changes != before.Changes // it was down in between
		if again || was && !wasUp || !was && s.Since.After(e.began) {
			text := "the session is established"
			if again && s.Message != "" && s.Reason != routes.NotConfigured {
				text += " again, after: " + s.Message
			}
			event(corev1.EventTypeNormal, SessionUp, text)
		}
	case wasUp:
		recorded.reason, recorded.message = s.Reason, s.Message
		event(corev1.EventTypeWarning, SessionDown, "the session ended"+because(s.Reason, s.Message))
	case s.Reason != "" && (s.Reason != before.reason || s.Message != before.message):
		recorded.reason, recorded.message = s.Reason, s.Message
		event(corev1.EventTypeWarning, string(s.Reason), "no session"+because(s.Reason, s.Message))
	}
	switch {
	case s.BFD == view.BFDUp && (was && before.BFD != view.BFDUp || !was && s.BFDSince.After(e.began)):
		event(corev1.EventTypeNormal, BFDUp, "BFD is up")
	case s.BFDReason != "" && before.BFDReason == "": // a changed reason is only in the status
		event(corev1.EventTypeWarning, string(s.BFDReason), "the session is established, but BFD is not up, and nothing watches the path"+because("", s.BFDMessage))
	}
	return recorded
}

// because returns why a session is not established or up, if known.
func because(reason view.Reason, message string) string {
	if why := cmp.Or(message, string(reason)); why != "" {
		return ": " + why
	}
	return ""
}
