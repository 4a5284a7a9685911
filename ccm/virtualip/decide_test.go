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

// bureau is a placer with a fake API and a manual clock.
type bureau struct {
	*registry
	placer *Placer
	now    time.Time
	nodes  map[string]*v1.Node
	// absent are the nodes with an absent speaker, observers those whose speaker has just started.
	absent, observers map[string]bool
	units             []unit
	pools             policies
	ads               []advertisement.Selection
}

func newBureau(t *testing.T, nodes string, vips int) *bureau {
	d := &bureau{
		registry: newRegistry(t), now: time.Unix(1e9, 0), nodes: map[string]*v1.Node{}, pools: policies{},
		absent: map[string]bool{}, observers: map[string]bool{}, ads: []advertisement.Selection{{}},
	}
	for _, name := range strings.Fields(nodes) {
		d.join(name)
	}
	for i := range vips {
		d.units = append(d.units, unit{addresses: []pools.Address{ccmtest.Address(fmt.Sprintf("192.0.2.%d", i+1), "web")}, services: ccmtest.Keys(fmt.Sprintf("s%d", i+1))})
	}
	d.pool(func(*v1alpha1.IPAddressPool) {})
	d.restart()
	return d
}

// restart starts over with the state of the API.
func (d *bureau) restart() {
	log := slog.New(slog.DiscardHandler)
	d.writer = newVIPWriter(log, d.events, d.client, func() {})
	d.writer.atOnce = 1
	d.placer = &Placer{log: log, events: d.events, client: d.client, writer: d.writer, outage: &lastOutage{}, mover: newMover(log, d.events)}
}

func (d *bureau) join(name string) {
	d.nodes[name] = ccmtest.Node(name, func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: "True"}} })
}

func (d *bureau) ready(status v1.ConditionStatus, names ...string) {
	for _, name := range names {
		d.nodes[name].Status.Conditions[0].Status = status
	}
}

// pool changes the pool web.
func (d *bureau) pool(change func(*v1alpha1.IPAddressPool)) {
	d.t.Helper()
	obj := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	if old := d.pools["web"]; old != nil {
		obj = old.DeepCopy()
		change(obj)
		if err := d.client.Update(context.Background(), obj); err != nil {
			d.t.Fatal(err)
		}
	} else if err := d.client.Create(context.Background(), obj); err != nil {
		d.t.Fatal(err)
	}
	d.pools["web"] = obj
}

// speakers returns the SpeakerStatus of all nodes.
func (d *bureau) speakers() []v1alpha1.SpeakerStatus {
	var out []v1alpha1.SpeakerStatus
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		s := v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Status.DataPlane.Healthy = true
		for other := range d.nodes {
			state := v1alpha1.MemberAlive
			if d.absent[other] {
				state = v1alpha1.MemberSilent
			} else if d.observers[other] {
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

func (d *bureau) live() map[string]bool {
	out := map[string]bool{}
	for name, n := range d.nodes {
		out[name] = !watch.StatusUnknown(n)
	}
	return out
}

// pass runs one pass after the given time and returns what was written.
func (d *bureau) pass(after time.Duration) string {
	d.t.Helper()
	d.now, d.writes = d.now.Add(after), nil
	p := d.placer
	p.next = time.Time{}
	p.targets = newMoveTargets(d.speakers(), d.live())
	have := p.writer.existing(d.now, d.seen())
	m := newMatcher(
		d.ads, slices.Collect(maps.Values(d.nodes)), false, d.pools.labels, func(pools.ServiceKey) map[string]string { return nil },
	)
	want := p.decide(d.now, slices.Clone(d.units), m, d.pools, have)
	newer, err := p.writer.write(context.Background(), have, want)
	if err == nil {
		err = p.acknowledge(context.Background(), d.pools, have)
	}
	if newer || err != nil {
		d.t.Fatal(newer, err)
	}
	var pool v1alpha1.IPAddressPool
	if err := d.client.Get(context.Background(), client.ObjectKey{Name: "web"}, &pool); err != nil {
		d.t.Fatal(err)
	}
	d.pools["web"] = &pool
	return strings.Join(d.writes, ", ")
}

// led lists the first node of each VirtualIP, in the order of the VirtualIPs.
func (d *bureau) led() string {
	seen := d.seen()
	var out []string
	for _, u := range d.units {
		first := "-"
		if v := seen[u.name()]; v != nil && len(v.Spec.Nodes) > 0 {
			first = v.Spec.Nodes[0]
		}
		out = append(out, first)
	}
	return strings.Join(out, " ")
}

// elect makes the first node of each list hold it.
func (d *bureau) elect() {
	for name, v := range d.seen() {
		if len(v.Spec.Nodes) > 0 && v.Status.Node != v.Spec.Nodes[0] {
			d.hold(name, v.Spec.Nodes[0])
		}
	}
}

// eventTexts returns the Events since the last call.
func (d *bureau) eventTexts() string {
	var out []string
	for len(d.events.Events) > 0 {
		out = append(out, <-d.events.Events)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// settledBureau returns a bureau in which everything is placed and held.
func settledBureau(t *testing.T, nodes string, vips int) *bureau {
	d := newBureau(t, nodes, vips)
	d.pass(0)
	d.elect()
	d.pass(settleFor)
	d.pass(exactAfter)
	if got := d.pass(exactAfter); got != "" {
		t.Fatalf("wrote %s, all was placed", got)
	}
	return d
}

// TestAPIBack: the API server was unavailable for ten minutes, addresses failed over meanwhile and this process was
// restarted. The API server is back and reports all nodes as not ready. The statuses arrive late. Nothing moves.
func TestAPIBack(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		d := settledBureau(t, "a b c", 6)
		before := d.led()
		if restarted {
			d.restart()
		} else {
			d.placer.outage.(*lastOutage).recovered = d.now.Add(10 * time.Minute)
		}
		d.ready("Unknown", "a", "b", "c")
		d.join("d") // and a node has joined
		if got := d.pass(10 * time.Minute); got != "" {
			t.Fatalf("restarted %v: wrote %s before the speakers could report the owners", restarted, got)
		}
		if at, _ := d.placer.settles(); !d.placer.deferred || d.placer.next != at {
			t.Errorf("restarted %v: waits %v until %v", restarted, d.placer.deferred, d.placer.next)
		}
		for i := range d.units { // everything is held by another node now
			v := d.seen()[d.units[i].name()]
			d.hold(v.Name, v.Spec.Nodes[1])
		}
		d.ready("True", "b", "c")
		held := map[string]string{}
		for name, v := range d.seen() {
			held[name] = v.Status.Node
		}
		if got := d.pass(settleFor / 2); got != "" {
			t.Fatalf("restarted %v: wrote %s before all had settled", restarted, got)
		}
		if got := d.pass(settleFor); strings.Count(got, "patch") != len(d.units) {
			t.Errorf("restarted %v: wrote %s, want a list each", restarted, got)
		}
		d.ready("True", "a")
		for range 3 {
			d.pass(exactAfter)
			for name, v := range d.seen() {
				if v.Spec.Nodes[0] != held[name] {
					t.Errorf("restarted %v: %s is led by %s, and %s holds (before: %s)", restarted, name, v.Spec.Nodes[0], held[name], before)
				}
			}
		}
		if got := d.eventTexts(); got != "" {
			t.Errorf("restarted %v: Events %s", restarted, got)
		}
	}
}

// TestReportsTakeLong: the API server is back, and a speaker that took over hundreds of addresses reports some of them
// each second. No list is written before the speaker has finished, and none later than two minutes after.
func TestReportsTakeLong(t *testing.T) {
	for _, ends := range []bool{true, false} {
		d := settledBureau(t, "a b c", 60)
		came := d.now.Add(10 * time.Minute)
		d.placer.outage.(*lastOutage).recovered = came
		d.join("d")
		if got := d.pass(10 * time.Minute); got != "" {
			t.Fatalf("wrote %s at once", got)
		}
		var last time.Time
		for i := range 60 {
			name := d.units[i].name()
			v := d.seen()[name]
			if ends && i == 15 {
				break
			}
			last = d.now
			d.hold(name, v.Spec.Nodes[1])
			if got := d.pass(3 * time.Second); (got != "") != (d.now.Sub(came) >= settleMost) {
				t.Fatalf("%v after it came back, reports end: %v: wrote %q", d.now.Sub(came), ends, got)
			}
			if d.now.Sub(came) >= settleMost {
				break
			}
		}
		if !ends {
			continue
		}
		if at, _ := d.placer.settles(); at != last.Add(3*time.Second+settleFor) {
			t.Errorf("settles at %v, the last report was seen at %v", at, last.Add(3*time.Second))
		}
		if got := d.pass(settleFor); strings.Count(got, "patch") != len(d.units) {
			t.Errorf("wrote %s, want a list each", got)
		}
		for i := range 15 {
			if name := d.units[i].name(); d.seen()[name].Spec.Nodes[0] != d.seen()[name].Status.Node {
				t.Errorf("%s moved back", name)
			}
		}
	}
}

// TestNewWhileUnsettled: a new address does not wait, and an unneeded one is removed.
func TestNewWhileUnsettled(t *testing.T) {
	d := settledBureau(t, "a b c", 2)
	d.restart()
	d.units = append(d.units[1:], unit{addresses: []pools.Address{ccmtest.Address("192.0.2.9", "web")}, services: ccmtest.Keys("s9")})
	if got := d.pass(0); got != "create 192.0.2.9, delete 192.0.2.1" {
		t.Errorf("wrote %s", got)
	}
}

// TestListWithoutHolderDoesNotWait: a VirtualIP without an eligible node, or created since the start, is placed as soon
// as there are nodes.
func TestListWithoutHolderDoesNotWait(t *testing.T) {
	d := newBureau(t, "", 1)
	d.now = time.Now() // the writer uses the real clock
	d.pass(0)
	d.join("a")
	d.pass(0)
	if got := d.led(); got != "a" {
		t.Errorf("led by %s", got)
	}
	d.join("b")
	if got := d.pass(0); got != "patch 192.0.2.1" {
		t.Errorf("wrote %q: it was made after the start", got)
	}
	d.restart()
	d.join("c")
	if got := d.pass(0); got != "" {
		t.Errorf("wrote %q: it may be held", got)
	}
}

// TestDrain: the addresses of a cordoned node are handed over one by one, each after the one before has arrived.
func TestDrain(t *testing.T) {
	d := settledBureau(t, "a b c", 9)
	d.nodes["a"].Spec.Unschedulable = true
	for range 50 {
		got := d.pass(movePause)
		if n := len(movingOf(d)); n > 1 {
			t.Fatalf("%d are on their way at once: %s", n, got)
		}
		if more := d.pass(moveWithin / 2); strings.Contains(more, "patch") && len(movingOf(d)) != 1 {
			t.Fatalf("wrote %s while one was on its way", more)
		}
		d.elect()
	}
	if got := d.led(); strings.Contains(got, "a") {
		t.Errorf("some are left on the cordoned node: %s", got)
	}
	if got := d.eventTexts(); strings.Count(got, "Normal Drained moved from node a to node ") != 3 {
		t.Errorf("Events: %s", got)
	}
	d.nodes["a"].Spec.Unschedulable = false
	d.pass(time.Minute)
	if got := d.led(); strings.Contains(got, "a") {
		t.Errorf("back without request: %s", got)
	}
}

// movingOf returns the VirtualIPs whose first node is not the owner.
func movingOf(d *bureau) (out []string) {
	for name, v := range d.seen() {
		if len(v.Spec.Nodes) > 0 && v.Status.Node != v.Spec.Nodes[0] {
			out = append(out, name)
		}
	}
	return out
}

// TestNotTakenOver: a node that does not take over loses the move, which is not retried for a long time.
func TestNotTakenOver(t *testing.T) {
	d := settledBureau(t, "a b", 2)
	d.nodes["a"].Spec.Unschedulable = true
	d.pass(time.Second)
	if got := d.led(); got != "b b" {
		t.Fatalf("led by %s", got)
	}
	d.pass(moveWithin)
	if got := d.led(); strings.Count(got, "a") != 1 {
		t.Errorf("led by %s, want the owner first again", got)
	}
	if got := d.eventTexts(); !strings.HasPrefix(got, "Warning NotMoved node b did not take over from node a within 30s") {
		t.Errorf("Events: %s", got)
	}
	if got := d.pass(refusedFor / 2); got != "" {
		t.Errorf("tried again: %s", got)
	}
	d.pass(refusedFor / 2)
	if got := d.led(); got != "b b" {
		t.Errorf("not tried again: %s", got)
	}
}

// TestRefusedIsLast: an address that cannot be moved does not delay others.
func TestRefusedIsLast(t *testing.T) {
	d := settledBureau(t, "a b c", 6)
	d.nodes["a"].Spec.Unschedulable = true
	d.pass(movePause)
	stuck := movingOf(d)
	d.pass(moveWithin)
	for range 4 {
		d.pass(movePause)
		if now := movingOf(d); len(now) == 1 && now[0] != stuck[0] {
			d.elect()
		}
	}
	if got := strings.Count(d.led(), "a"); got > 1 || len(stuck) != 1 || d.seen()[stuck[0]].Status.Node != "a" {
		t.Errorf("%v was not taken over; led by %s", stuck, d.led())
	}
}

// TestRebalance: on request of the pool the addresses move to a new node until the loads are even, and the request is
// acknowledged. A request on one VirtualIP moves only that one.
func TestRebalance(t *testing.T) {
	d := settledBureau(t, "a b", 6)
	d.join("c")
	d.pass(time.Second)
	d.elect()
	if got := d.led(); strings.Contains(got, "c") {
		t.Fatalf("a new node took something: %s", got)
	}
	ask := func(value string) {
		d.pool(func(obj *v1alpha1.IPAddressPool) {
			obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: value}
		})
	}
	one := d.seen()["192.0.2.3"]
	one.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
	if err := d.client.Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	d.pass(time.Second)
	if got := movingOf(d); !slices.Equal(got, []string{"192.0.2.3"}) || d.seen()["192.0.2.3"].Spec.Nodes[0] != "c" {
		t.Errorf("moving %s: %s", got, d.led())
	}
	d.elect()
	for range 4 {
		d.pass(movePause)
		d.elect()
	}
	if v := d.seen()["192.0.2.3"]; v.Annotations[v1alpha1.AnnotationRebalance] != "" || strings.Count(d.led(), "c") != 1 {
		t.Errorf("annotations %v, led by %s", v.Annotations, d.led())
	}
	ask("now")
	for range 10 {
		d.pass(movePause)
		if n := len(movingOf(d)); n > 1 {
			t.Fatalf("%d are on their way at once", n)
		}
		if n := len(movingOf(d)); n > 0 && d.pools["web"].Status.Rebalanced != "" {
			t.Error("answered before the end")
		}
		d.elect()
	}
	for _, n := range []string{"a", "b", "c"} {
		if got := strings.Count(d.led(), n); got != 2 {
			t.Errorf("%s leads %d: %s", n, got, d.led())
		}
	}
	if got := d.pools["web"].Status.Rebalanced; got != "now" {
		t.Errorf("status.rebalanced is %q", got)
	}
	if got := d.eventTexts(); strings.Count(got, "Normal Rebalanced moved from node ") != 2 {
		t.Errorf("Events: %s", got)
	}
	d.join("d")
	d.pass(time.Second)
	d.elect()
	d.pass(time.Minute)
	if got := d.led(); strings.Contains(got, "d") {
		t.Errorf("a request was carried out twice: %s", got)
	}
}

// TestGradual: by the pool's policy addresses move to a node that has been ready for the delay without interruption.
func TestGradual(t *testing.T) {
	d := settledBureau(t, "a b", 6)
	d.pool(func(obj *v1alpha1.IPAddressPool) {
		obj.Spec.Rebalance, obj.Spec.PreemptDelay = v1alpha1.RebalanceGradual, &metav1.Duration{Duration: time.Minute}
	})
	d.join("c")
	d.pass(time.Second)
	d.elect()
	d.pass(30 * time.Second)
	d.ready("False", "c") // an interruption
	d.pass(time.Second)
	d.ready("True", "c")
	d.pass(time.Second)
	if got := d.placer.next.Sub(d.now); got <= 0 || got > time.Minute {
		t.Errorf("the next pass is in %s", got)
	}
	d.elect()
	d.pass(59 * time.Second)
	if got := d.led(); strings.Contains(got, "c") {
		t.Fatalf("moved too early: %s", got)
	}
	for range 10 {
		d.pass(movePause)
		d.elect()
	}
	if got := strings.Count(d.led(), "c"); got != 2 {
		t.Errorf("c leads %d, want 2: %s", got, d.led())
	}
}

// TestMovesToSpeakers: Kubernetes reports a node as ready whose speaker is absent, has just started, or is not received
// by the owner's. Nothing is moved there, by policy or by request. The node is not recorded as refusing: a request is
// carried out once the speaker is back.
func TestMovesToSpeakers(t *testing.T) {
	for _, gradual := range []bool{true, false} {
		d := settledBureau(t, "a b c", 6)
		lost := func() { // the speaker of c: the others take over what it held
			d.absent["c"] = true
			for name, v := range d.seen() {
				if v.Status.Node == "c" {
					d.hold(name, v.Spec.Nodes[1])
				}
			}
		}
		d.pool(func(obj *v1alpha1.IPAddressPool) {
			if gradual {
				obj.Spec.Rebalance, obj.Spec.PreemptDelay = v1alpha1.RebalanceGradual, &metav1.Duration{Duration: time.Minute}
			}
		})
		d.pass(5 * time.Minute)
		lost()
		expectNone := func(after time.Duration, why string) {
			t.Helper()
			for range 3 {
				d.pass(after)
				if got := movingOf(d); len(got) > 0 || strings.Contains(d.led(), "c") {
					t.Fatalf("gradual %v: moving %v to c, %s: %s", gradual, got, why, d.led())
				}
			}
		}
		expectNone(movePause, "whose speaker has just gone")
		expectNone(moveWithin, "whose speaker is absent")
		if !gradual {
			d.pool(func(obj *v1alpha1.IPAddressPool) {
				obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
			})
		}
		d.absent["c"], d.observers["c"] = false, true
		if gradual {
			expectNone(movePause, "which is an observer")
		}
		d.observers["c"] = false
		if gradual {
			expectNone(19*time.Second, "which was not there for a minute")
		}
		for range 12 {
			d.pass(4 * movePause)
			d.elect()
		}
		if got := strings.Count(d.led(), "c"); got != 2 {
			t.Errorf("gradual %v: c leads %d, want 2: %s", gradual, got, d.led())
		}
		if got := d.eventTexts(); strings.Contains(got, "NotMoved") {
			t.Errorf("gradual %v: Events %s", gradual, got)
		}
	}
}

// TestRequestWaitsForSpeaker: a request that arrives shortly before the speaker of the new node starts is acknowledged
// when it is carried out, or after half a minute.
func TestRequestWaitsForSpeaker(t *testing.T) {
	for _, comes := range []bool{true, false} {
		d := settledBureau(t, "a b", 6)
		d.join("c")
		d.absent["c"] = true
		d.pool(func(obj *v1alpha1.IPAddressPool) {
			obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
		})
		d.pass(time.Second)
		d.pass(watch.AbsentFor - time.Second)
		if got := d.pools["web"].Status.Rebalanced; got != "" || movingOf(d) != nil {
			t.Fatalf("answered %q, moving %v", got, movingOf(d))
		}
		d.absent["c"] = !comes
		for range 10 {
			d.pass(movePause)
			d.elect()
		}
		want := map[bool]int{true: 2}[comes]
		if got := strings.Count(d.led(), "c"); got != want || d.pools["web"].Status.Rebalanced != "now" {
			t.Errorf("comes %v: c leads %d, want %d; answered %q", comes, got, want, d.pools["web"].Status.Rebalanced)
		}
	}
}

// TestMoveIsNews: the previous first node of a list takes part again before the list follows the owner. It is moved to
// by a new list: a list equal to the one that the owner already has would request nothing.
func TestMoveIsNews(t *testing.T) {
	d := settledBureau(t, "a b", 4)
	d.pool(func(obj *v1alpha1.IPAddressPool) {
		obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
	})
	first := d.units[0].name()
	dead := d.seen()[first].Status.Node
	heir := map[string]string{"a": "b", "b": "a"}[dead]
	for name, v := range d.seen() {
		if v.Status.Node == dead {
			d.hold(name, heir)
		}
	}
	d.pass(time.Second)
	if list := d.seen()[first].Spec.Nodes; list[0] != heir {
		t.Errorf("%s is listed on %v, and the list has never followed the owner", first, list)
	}
	d.elect()
	for range 5 {
		d.pass(movePause)
		d.elect()
	}
	if got := strings.Count(d.led(), dead); got != 2 {
		t.Errorf("%s leads %d, want 2: %s", dead, got, d.led())
	}
}

// TestNewRequest: a node did not take over. A new request retries at once, and so does a node whose speaker was absent
// since.
func TestNewRequest(t *testing.T) {
	for _, requested := range []bool{true, false} {
		d := settledBureau(t, "a b", 2)
		d.nodes["a"].Spec.Unschedulable = true
		d.pass(time.Second)
		d.pass(moveWithin)
		if got := d.eventTexts(); !strings.Contains(got, "NotMoved") || strings.Count(d.led(), "a") != 1 {
			t.Fatalf("led by %s, Events %s", d.led(), got)
		}
		if requested {
			d.pool(func(obj *v1alpha1.IPAddressPool) {
				obj.Annotations = map[string]string{v1alpha1.AnnotationRebalance: "now"}
			})
		} else {
			d.absent["b"] = true
			d.pass(time.Second)
			d.absent["b"] = false
		}
		d.pass(time.Second)
		if got := d.led(); got != "b b" {
			t.Errorf("requested %v: not tried again: %s", requested, got)
		}
	}
}

// TestExcluded: an ineligible node is removed from the lists, with an Event for each VirtualIP that it led. If no node
// is left, that is reported.
func TestExcluded(t *testing.T) {
	d := settledBureau(t, "a b", 2)
	d.nodes["a"].Labels[v1.LabelNodeExcludeBalancers] = ""
	d.pass(time.Second)
	if got := d.led(); got != "b b" {
		t.Errorf("led by %s", got)
	}
	if got := d.eventTexts(); got != "Normal OwnerNotEligible placed on node b instead of node a" {
		t.Errorf("Events: %s", got)
	}
	d.nodes["b"].Spec.Taints = []v1.Taint{{Key: watch.TaintToBeDeleted}}
	d.pass(time.Second)
	if got := d.led(); got != "- -" {
		t.Errorf("led by %s", got)
	}
	want := "Warning NoEligibleNode No node that an L2Advertisement for this address selects is eligible now: " +
		"a (labelled node.kubernetes.io/exclude-from-external-load-balancers), b (tainted ToBeDeletedByClusterAutoscaler). " +
		"Remove the label, or set the chart's value ignoreExcludeLB"
	if got := d.eventTexts(); got != want+"\n"+want {
		t.Errorf("Events: %s", got)
	}
}
