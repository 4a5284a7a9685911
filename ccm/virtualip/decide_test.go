package virtualip

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/advertisement"
	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// lastOutage is the last outage of the API server, the zero time for none.
type lastOutage struct{ recovered time.Time }

func (o *lastOutage) Settles(within time.Duration) (at, since time.Time) {
	if o.recovered.IsZero() {
		return at, since
	}
	return o.recovered.Add(within), o.recovered
}

// placerFixture is a placer with a fake API and a manual clock.
type placerFixture struct {
	*writerFixture
	placer *Placer
	now    time.Time
	nodes  map[string]*v1.Node
	// absent are the nodes with an absent speaker, observers those whose speaker has just started.
	absent, observers map[string]bool
	units             []unit
	pools             policies
	ads               []advertisement.Selection
}

func newPlacerFixture(t *testing.T, nodes string, vips int) *placerFixture {
	f := &placerFixture{
		writerFixture: newWriterFixture(t), now: time.Unix(1e9, 0), nodes: map[string]*v1.Node{}, pools: policies{},
		absent: map[string]bool{}, observers: map[string]bool{}, ads: []advertisement.Selection{{}},
	}
	for _, name := range strings.Fields(nodes) {
		f.join(name)
	}
	for i := range vips {
		f.units = append(f.units, unit{addresses: []pools.Address{ccmtest.Address(fmt.Sprintf("192.0.2.%d", i+1), "web")}, services: ccmtest.Keys(fmt.Sprintf("s%d", i+1))})
	}
	f.pool(func(*v1alpha1.IPAddressPool) {})
	f.restart()
	return f
}

// restart starts over with the state of the API.
func (f *placerFixture) restart() {
	log := slog.New(slog.DiscardHandler)
	f.writer = newVIPWriter(log, f.events, f.client, func() {})
	f.writer.atOnce = 1
	f.placer = &Placer{log: log, events: f.events, client: f.client, writer: f.writer, outage: &lastOutage{}, mover: newMover(log, f.events)}
}

func (f *placerFixture) join(name string) {
	f.nodes[name] = ccmtest.Node(name, func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: "True"}} })
}

func (f *placerFixture) ready(status v1.ConditionStatus, names ...string) {
	for _, name := range names {
		f.nodes[name].Status.Conditions[0].Status = status
	}
}

// pool changes the pool web.
func (f *placerFixture) pool(change func(*v1alpha1.IPAddressPool)) {
	f.t.Helper()
	obj := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	if old := f.pools["web"]; old != nil {
		obj = old.DeepCopy()
		change(obj)
		if err := f.client.Update(context.Background(), obj); err != nil {
			f.t.Fatal(err)
		}
	} else if err := f.client.Create(context.Background(), obj); err != nil {
		f.t.Fatal(err)
	}
	f.pools["web"] = obj
}

// speakers returns the SpeakerStatus of all nodes.
func (f *placerFixture) speakers() []v1alpha1.SpeakerStatus {
	var out []v1alpha1.SpeakerStatus
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		s := v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Status.DataPlane.Healthy = true
		for other := range f.nodes {
			state := v1alpha1.MemberAlive
			if f.absent[other] {
				state = v1alpha1.MemberSilent
			} else if f.observers[other] {
				state = v1alpha1.MemberObserver
			}
			if other != name {
				s.Status.Members = append(s.Status.Members, v1alpha1.MemberStatus{Node: other, State: state})
			}
		}
		out = append(out, s)
	}
	return out
}

func (f *placerFixture) live() map[string]bool {
	out := map[string]bool{}
	for name, n := range f.nodes {
		out[name] = !watch.StatusUnknown(n)
	}
	return out
}

// pass runs one pass after the given time and returns what was written.
func (f *placerFixture) pass(after time.Duration) string {
	f.t.Helper()
	f.now, f.writes = f.now.Add(after), nil
	p := f.placer
	p.next = time.Time{}
	p.targets = newMoveTargets(f.speakers(), f.live())
	have := p.writer.existing(f.now, f.seen())
	m := newMatcher(
		f.ads, slices.Collect(maps.Values(f.nodes)), false, f.pools.labels, func(pools.ServiceKey) map[string]string { return nil },
	)
	want := p.decide(f.now, slices.Clone(f.units), m, f.pools, have)
	newer, err := p.writer.write(context.Background(), have, want)
	if err == nil {
		err = p.acknowledge(context.Background(), f.pools, have)
	}
	if newer || err != nil {
		f.t.Fatal(newer, err)
	}
	var pool v1alpha1.IPAddressPool
	if err := f.client.Get(context.Background(), client.ObjectKey{Name: "web"}, &pool); err != nil {
		f.t.Fatal(err)
	}
	f.pools["web"] = &pool
	return strings.Join(f.writes, ", ")
}

// led lists the first node of each VirtualIP, in the order of the VirtualIPs.
func (f *placerFixture) led() string {
	seen := f.seen()
	var out []string
	for _, u := range f.units {
		first := "-"
		if v := seen[u.name()]; v != nil && len(v.Spec.Nodes) > 0 {
			first = v.Spec.Nodes[0]
		}
		out = append(out, first)
	}
	return strings.Join(out, " ")
}

// elect makes the first node of each list hold it.
func (f *placerFixture) elect() {
	for name, v := range f.seen() {
		if len(v.Spec.Nodes) > 0 && v.Status.Node != v.Spec.Nodes[0] {
			f.hold(name, v.Spec.Nodes[0])
		}
	}
}

// eventTexts returns the Events since the last call.
func (f *placerFixture) eventTexts() string {
	var out []string
	for len(f.events.Events) > 0 {
		out = append(out, <-f.events.Events)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// settledPlacerFixture returns a placerFixture in which everything is placed and held.
func settledPlacerFixture(t *testing.T, nodes string, vips int) *placerFixture {
	f := newPlacerFixture(t, nodes, vips)
	f.pass(0)
	f.elect()
	f.pass(settleFor)
	f.pass(exactAfter)
	if got := f.pass(exactAfter); got != "" {
		t.Fatalf("wrote %s, all was placed", got)
	}
	return f
}

// TestAPIBack: the API server was unavailable for ten minutes, addresses failed over meanwhile and this process was
// restarted. The API server is back and reports all nodes as not ready. The statuses arrive late. Nothing moves.
func TestAPIBack(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		f := settledPlacerFixture(t, "a b c", 6)
		before := f.led()
		if restarted {
			f.restart()
		} else {
			f.placer.outage.(*lastOutage).recovered = f.now.Add(10 * time.Minute)
		}
		f.ready("Unknown", "a", "b", "c")
		f.join("d") // and a node has joined
		if got := f.pass(10 * time.Minute); got != "" {
			t.Fatalf("restarted %v: wrote %s before the speakers could report the owners", restarted, got)
		}
		if at, _ := f.placer.settles(); !f.placer.deferred || f.placer.next != at {
			t.Errorf("restarted %v: waits %v until %v", restarted, f.placer.deferred, f.placer.next)
		}
		for i := range f.units { // everything is held by another node now
			v := f.seen()[f.units[i].name()]
			f.hold(v.Name, v.Spec.Nodes[1])
		}
		f.ready("True", "b", "c")
		held := map[string]string{}
		for name, v := range f.seen() {
			held[name] = v.Status.Node
		}
		if got := f.pass(settleFor / 2); got != "" {
			t.Fatalf("restarted %v: wrote %s before all had settled", restarted, got)
		}
		if got := f.pass(settleFor); strings.Count(got, "patch") != len(f.units) {
			t.Errorf("restarted %v: wrote %s, want a list each", restarted, got)
		}
		f.ready("True", "a")
		for range 3 {
			f.pass(exactAfter)
			for name, v := range f.seen() {
				if v.Spec.Nodes[0] != held[name] {
					t.Errorf("restarted %v: %s is led by %s, and %s holds (before: %s)", restarted, name, v.Spec.Nodes[0], held[name], before)
				}
			}
		}
		if got := f.eventTexts(); got != "" {
			t.Errorf("restarted %v: Events %s", restarted, got)
		}
	}
}

// TestReportsTakeLong: the API server is back, and a speaker that took over hundreds of addresses reports some of them
// each second. No list is written before the speaker has finished, and none later than two minutes after.
func TestReportsTakeLong(t *testing.T) {
	for _, ends := range []bool{true, false} {
		f := settledPlacerFixture(t, "a b c", 60)
		came := f.now.Add(10 * time.Minute)
		f.placer.outage.(*lastOutage).recovered = came
		f.join("d")
		if got := f.pass(10 * time.Minute); got != "" {
			t.Fatalf("wrote %s at once", got)
		}
		var last time.Time
		for i := range 60 {
			name := f.units[i].name()
			v := f.seen()[name]
			if ends && i == 15 {
				break
			}
			last = f.now
			f.hold(name, v.Spec.Nodes[1])
			if got := f.pass(3 * time.Second); (got != "") != (f.now.Sub(came) >= settleMost) {
				t.Fatalf("%v after it came back, reports end: %v: wrote %q", f.now.Sub(came), ends, got)
			}
			if f.now.Sub(came) >= settleMost {
				break
			}
		}
		if !ends {
			continue
		}
		if at, _ := f.placer.settles(); at != last.Add(3*time.Second+settleFor) {
			t.Errorf("settles at %v, the last report was seen at %v", at, last.Add(3*time.Second))
		}
		if got := f.pass(settleFor); strings.Count(got, "patch") != len(f.units) {
			t.Errorf("wrote %s, want a list each", got)
		}
		for i := range 15 {
			if name := f.units[i].name(); f.seen()[name].Spec.Nodes[0] != f.seen()[name].Status.Node {
				t.Errorf("%s moved back", name)
			}
		}
	}
}

// TestNewWhileUnsettled: a new address does not wait, and an unneeded one is removed.
func TestNewWhileUnsettled(t *testing.T) {
	f := settledPlacerFixture(t, "a b c", 2)
	f.restart()
	f.units = append(f.units[1:], unit{addresses: []pools.Address{ccmtest.Address("192.0.2.9", "web")}, services: ccmtest.Keys("s9")})
	if got := f.pass(0); got != "create 192.0.2.9, delete 192.0.2.1" {
		t.Errorf("wrote %s", got)
	}
}

// TestListWithoutHolderDoesNotWait: a VirtualIP without an eligible node, or created since the start, is placed as soon
// as there are nodes.
func TestListWithoutHolderDoesNotWait(t *testing.T) {
	f := newPlacerFixture(t, "", 1)
	f.now = time.Now() // the writer uses the real clock
	f.pass(0)
	f.join("a")
	f.pass(0)
	if got := f.led(); got != "a" {
		t.Errorf("led by %s", got)
	}
	f.join("b")
	if got := f.pass(0); got != "patch 192.0.2.1" {
		t.Errorf("wrote %q: it was made after the start", got)
	}
	f.restart()
	f.join("c")
	if got := f.pass(0); got != "" {
		t.Errorf("wrote %q: it may be held", got)
	}
}

// TestDrain: the addresses of a cordoned node are handed over one by one, each after the one before has arrived.
func TestDrain(t *testing.T) {
	f := settledPlacerFixture(t, "a b c", 9)
	f.nodes["a"].Spec.Unschedulable = true
	for range 50 {
		got := f.pass(movePause)
		if n := len(movingOf(f)); n > 1 {
			t.Fatalf("%d are on their way at once: %s", n, got)
		}
		if more := f.pass(moveWithin / 2); strings.Contains(more, "patch") && len(movingOf(f)) != 1 {
			t.Fatalf("wrote %s while one was on its way", more)
		}
		f.elect()
	}
	if got := f.led(); strings.Contains(got, "a") {
		t.Errorf("some are left on the cordoned node: %s", got)
	}
	if got := f.eventTexts(); strings.Count(got, "Normal Drained moved from node a to node ") != 3 {
		t.Errorf("Events: %s", got)
	}
	f.nodes["a"].Spec.Unschedulable = false
	f.pass(time.Minute)
	if got := f.led(); strings.Contains(got, "a") {
		t.Errorf("back without request: %s", got)
	}
}

// movingOf returns the VirtualIPs whose first node is not the owner.
func movingOf(f *placerFixture) (out []string) {
	for name, v := range f.seen() {
		if len(v.Spec.Nodes) > 0 && v.Status.Node != v.Spec.Nodes[0] {
			out = append(out, name)
		}
	}
	return out
}

// TestNotTakenOver: a node that does not take over loses the move, which is not retried for a long time.
func TestNotTakenOver(t *testing.T) {
	f := settledPlacerFixture(t, "a b", 2)
	f.nodes["a"].Spec.Unschedulable = true
	f.pass(time.Second)
	if got := f.led(); got != "b b" {
		t.Fatalf("led by %s", got)
	}
	f.pass(moveWithin)
	if got := f.led(); strings.Count(got, "a") != 1 {
		t.Errorf("led by %s, want the owner first again", got)
	}
	if got := f.eventTexts(); !strings.HasPrefix(got, "Warning NotMoved node b did not take over from node a within 30s") {
		t.Errorf("Events: %s", got)
	}
	if got := f.pass(refusedFor / 2); got != "" {
		t.Errorf("tried again: %s", got)
	}
	f.pass(refusedFor / 2)
	if got := f.led(); got != "b b" {
		t.Errorf("not tried again: %s", got)
	}
}

// TestRefusedIsLast: an address that cannot be moved does not delay others.
func TestRefusedIsLast(t *testing.T) {
	f := settledPlacerFixture(t, "a b c", 6)
	f.nodes["a"].Spec.Unschedulable = true
	f.pass(movePause)
	stuck := movingOf(f)
	f.pass(moveWithin)
	for range 4 {
		f.pass(movePause)
		if now := movingOf(f); len(now) == 1 && now[0] != stuck[0] {
			f.elect()
		}
	}
	if got := strings.Count(f.led(), "a"); got > 1 || len(stuck) != 1 || f.seen()[stuck[0]].Status.Node != "a" {
		t.Errorf("%v was not taken over; led by %s", stuck, f.led())
	}
}

// TestRebalance: on request of the pool the addresses move to a new node until the loads are even, and the request is
// acknowledged. A request on one VirtualIP moves only that one.
func TestRebalance(t *testing.T) {
	f := settledPlacerFixture(t, "a b", 6)
	f.join("c")
	f.pass(time.Second)
	f.elect()
	if got := f.led(); strings.Contains(got, "c") {
		t.Fatalf("a new node took something: %s", got)
	}
	ask := func(value string) {
		f.pool(func(obj *v1alpha1.IPAddressPool) {
			obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: value}
		})
	}
	one := f.seen()["192.0.2.3"]
	one.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
	if err := f.client.Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	f.pass(time.Second)
	if got := movingOf(f); !slices.Equal(got, []string{"192.0.2.3"}) || f.seen()["192.0.2.3"].Spec.Nodes[0] != "c" {
		t.Errorf("moving %s: %s", got, f.led())
	}
	f.elect()
	for range 4 {
		f.pass(movePause)
		f.elect()
	}
	if v := f.seen()["192.0.2.3"]; v.Annotations[v1alpha1.AnnotationRebalance] != "" || strings.Count(f.led(), "c") != 1 {
		t.Errorf("annotations %v, led by %s", v.Annotations, f.led())
	}
	ask("now")
	for range 10 {
		f.pass(movePause)
		if n := len(movingOf(f)); n > 1 {
			t.Fatalf("%d are on their way at once", n)
		}
		if n := len(movingOf(f)); n > 0 && f.pools["web"].Status.Rebalanced != "" {
			t.Error("answered before the end")
		}
		f.elect()
	}
	for _, n := range []string{"a", "b", "c"} {
		if got := strings.Count(f.led(), n); got != 2 {
			t.Errorf("%s leads %d: %s", n, got, f.led())
		}
	}
	if got := f.pools["web"].Status.Rebalanced; got != "now" {
		t.Errorf("status.rebalanced is %q", got)
	}
	if got := f.eventTexts(); strings.Count(got, "Normal Rebalanced moved from node ") != 2 {
		t.Errorf("Events: %s", got)
	}
	f.join("d")
	f.pass(time.Second)
	f.elect()
	f.pass(time.Minute)
	if got := f.led(); strings.Contains(got, "d") {
		t.Errorf("a request was carried out twice: %s", got)
	}
}

// TestGradual: by the pool's policy addresses move to a node that has been ready for the delay without interruption.
func TestGradual(t *testing.T) {
	f := settledPlacerFixture(t, "a b", 6)
	f.pool(func(obj *v1alpha1.IPAddressPool) {
		obj.Spec.Rebalance, obj.Spec.PreemptDelay = v1alpha1.RebalanceGradual, &metav1.Duration{Duration: time.Minute}
	})
	f.join("c")
	f.pass(time.Second)
	f.elect()
	f.pass(30 * time.Second)
	f.ready("False", "c") // an interruption
	f.pass(time.Second)
	f.ready("True", "c")
	f.pass(time.Second)
	if got := f.placer.next.Sub(f.now); got <= 0 || got > time.Minute {
		t.Errorf("the next pass is in %s", got)
	}
	f.elect()
	f.pass(59 * time.Second)
	if got := f.led(); strings.Contains(got, "c") {
		t.Fatalf("moved too early: %s", got)
	}
	for range 10 {
		f.pass(movePause)
		f.elect()
	}
	if got := strings.Count(f.led(), "c"); got != 2 {
		t.Errorf("c leads %d, want 2: %s", got, f.led())
	}
}

// TestMovesToSpeakers: Kubernetes reports a node as ready whose speaker is absent, has just started, or is not received
// by the owner's. Nothing is moved there, by policy or by request. The node is not recorded as refusing: a request is
// carried out once the speaker is back.
func TestMovesToSpeakers(t *testing.T) {
	for _, gradual := range []bool{true, false} {
		f := settledPlacerFixture(t, "a b c", 6)
		lost := func() { // the speaker of c: the others take over what it held
			f.absent["c"] = true
			for name, v := range f.seen() {
				if v.Status.Node == "c" {
					f.hold(name, v.Spec.Nodes[1])
				}
			}
		}
		f.pool(func(obj *v1alpha1.IPAddressPool) {
			if gradual {
				obj.Spec.Rebalance, obj.Spec.PreemptDelay = v1alpha1.RebalanceGradual, &metav1.Duration{Duration: time.Minute}
			}
		})
		f.pass(5 * time.Minute)
		lost()
		expectNone := func(after time.Duration, why string) {
			t.Helper()
			for range 3 {
				f.pass(after)
				if got := movingOf(f); len(got) > 0 || strings.Contains(f.led(), "c") {
					t.Fatalf("gradual %v: moving %v to c, %s: %s", gradual, got, why, f.led())
				}
			}
		}
		expectNone(movePause, "whose speaker has just gone")
		expectNone(moveWithin, "whose speaker is absent")
		if !gradual {
			f.pool(func(obj *v1alpha1.IPAddressPool) {
				obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
			})
		}
		f.absent["c"], f.observers["c"] = false, true
		if gradual {
			expectNone(movePause, "which is an observer")
		}
		f.observers["c"] = false
		if gradual {
			expectNone(19*time.Second, "which was not there for a minute")
		}
		for range 12 {
			f.pass(4 * movePause)
			f.elect()
		}
		if got := strings.Count(f.led(), "c"); got != 2 {
			t.Errorf("gradual %v: c leads %d, want 2: %s", gradual, got, f.led())
		}
		if got := f.eventTexts(); strings.Contains(got, "NotMoved") {
			t.Errorf("gradual %v: Events %s", gradual, got)
		}
	}
}

// TestRequestWaitsForSpeaker: a request that arrives shortly before the speaker of the new node starts is acknowledged
// when it is carried out, or after half a minute.
func TestRequestWaitsForSpeaker(t *testing.T) {
	for _, comes := range []bool{true, false} {
		f := settledPlacerFixture(t, "a b", 6)
		f.join("c")
		f.absent["c"] = true
		f.pool(func(obj *v1alpha1.IPAddressPool) {
			obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
		})
		f.pass(time.Second)
		f.pass(watch.AbsentFor - time.Second)
		if got := f.pools["web"].Status.Rebalanced; got != "" || movingOf(f) != nil {
			t.Fatalf("answered %q, moving %v", got, movingOf(f))
		}
		f.absent["c"] = !comes
		for range 10 {
			f.pass(movePause)
			f.elect()
		}
		want := map[bool]int{true: 2}[comes]
		if got := strings.Count(f.led(), "c"); got != want || f.pools["web"].Status.Rebalanced != "now" {
			t.Errorf("comes %v: c leads %d, want %d; answered %q", comes, got, want, f.pools["web"].Status.Rebalanced)
		}
	}
}

// TestMoveIsNews: the previous first node of a list takes part again before the list follows the owner. It is moved to
// by a new list: a list equal to the one that the owner already has would request nothing.
func TestMoveIsNews(t *testing.T) {
	f := settledPlacerFixture(t, "a b", 4)
	f.pool(func(obj *v1alpha1.IPAddressPool) {
		obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
	})
	first := f.units[0].name()
	dead := f.seen()[first].Status.Node
	heir := map[string]string{"a": "b", "b": "a"}[dead]
	for name, v := range f.seen() {
		if v.Status.Node == dead {
			f.hold(name, heir)
		}
	}
	f.pass(time.Second)
	if list := f.seen()[first].Spec.Nodes; list[0] != heir {
		t.Errorf("%s is listed on %v, and the list has never followed the owner", first, list)
	}
	f.elect()
	for range 5 {
		f.pass(movePause)
		f.elect()
	}
	if got := strings.Count(f.led(), dead); got != 2 {
		t.Errorf("%s leads %d, want 2: %s", dead, got, f.led())
	}
}

// TestNewRequest: a node did not take over. A new request retries at once, and so does a node whose speaker was absent
// since.
func TestNewRequest(t *testing.T) {
	for _, requested := range []bool{true, false} {
		f := settledPlacerFixture(t, "a b", 2)
		f.nodes["a"].Spec.Unschedulable = true
		f.pass(time.Second)
		f.pass(moveWithin)
		if got := f.eventTexts(); !strings.Contains(got, "NotMoved") || strings.Count(f.led(), "a") != 1 {
			t.Fatalf("led by %s, Events %s", f.led(), got)
		}
		if requested {
			f.pool(func(obj *v1alpha1.IPAddressPool) {
				obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
			})
		} else {
			f.absent["b"] = true
			f.pass(time.Second)
			f.absent["b"] = false
		}
		f.pass(time.Second)
		if got := f.led(); got != "b b" {
			t.Errorf("requested %v: not tried again: %s", requested, got)
		}
	}
}

// TestExcluded: an ineligible node is removed from the lists, with an Event for each VirtualIP that it led. If no node
// is left, that is reported.
func TestExcluded(t *testing.T) {
	f := settledPlacerFixture(t, "a b", 2)
	f.nodes["a"].Labels[v1.LabelNodeExcludeBalancers] = ""
	f.pass(time.Second)
	if got := f.led(); got != "b b" {
		t.Errorf("led by %s", got)
	}
	if got := f.eventTexts(); got != "Normal OwnerNotEligible placed on node b instead of node a" {
		t.Errorf("Events: %s", got)
	}
	f.nodes["b"].Spec.Taints = []v1.Taint{{Key: watch.TaintToBeDeleted}}
	f.pass(time.Second)
	if got := f.led(); got != "- -" {
		t.Errorf("led by %s", got)
	}
	want := "Warning NoEligibleNode No node that an L2Advertisement for this address selects is eligible now: " +
		"a (labelled node.kubernetes.io/exclude-from-external-load-balancers), b (tainted ToBeDeletedByClusterAutoscaler). " +
		"Remove the label, or set the chart's value ignoreExcludeLB"
	if got := f.eventTexts(); got != want+"\n"+want {
		t.Errorf("Events: %s", got)
	}
}
