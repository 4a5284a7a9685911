package bgpstatus

import (
	"log/slog"
	"maps"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/watch"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestAbsencesCountLater: an absent speaker counts after a delay, at once if it was absent at the start of the process,
// and never if it comes back.
func TestAbsencesCountLater(t *testing.T) {
	type gone = map[string]v1alpha1.Absence
	const silent, stopped = v1alpha1.AbsenceSilent, v1alpha1.AbsenceStopped
	var a absences
	began := time.Unix(0, 0)
	for _, step := range []struct {
		at      time.Duration
		absent  gone
		counts  gone
		recheck time.Duration
	}{
		{0, gone{"a": silent}, gone{"a": silent}, 0},
		{time.Second, gone{"a": silent, "b": stopped}, gone{"a": silent}, watch.AbsentFor},
		{11 * time.Second, gone{"a": stopped, "b": silent, "c": silent}, gone{"a": stopped}, watch.AbsentFor - 10*time.Second},
		{watch.AbsentFor, gone{"b": silent, "c": silent}, gone{}, time.Second},
		{watch.AbsentFor + time.Second, gone{"a": silent, "b": silent, "c": silent}, gone{"b": silent}, 10 * time.Second},
		{watch.AbsentFor + 2*time.Second, gone{}, gone{}, 0},
	} {
		counts, recheck := a.evaluate(step.absent, began.Add(step.at))
		if !maps.Equal(counts, step.counts) || recheck != step.recheck {
			t.Errorf("after %v: %v counts, recheck after %v; want %v and %v", step.at, counts, recheck, step.counts, step.recheck)
		}
	}
}

// TestSpeakerAbsent: a peer's condition becomes Unknown when a speaker has been absent for a while, without another
// event. A restart of a speaker does not change it.
func TestSpeakerAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sch := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(sch); err != nil {
			t.Fatal(err)
		}
		reports := func(node, other string, state v1alpha1.MemberState) *v1alpha1.SpeakerStatus {
			s := speaker(node, "tor=Established")
			s.Status.Members = []v1alpha1.MemberStatus{{Node: other, State: state}}
			return &s
		}
		tor := bgpPeer("tor")
		cl := fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&tor).
			WithObjects(&tor, reports("a", "b", v1alpha1.MemberAlive), reports("b", "a", v1alpha1.MemberAlive)).Build()
		nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		for _, n := range []*v1.Node{ccmtest.Node("a"), ccmtest.Node("b")} {
			if err := nodes.Add(n); err != nil {
				t.Fatal(err)
			}
		}
		services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		b := New(slog.New(slog.DiscardHandler), record.NewFakeRecorder(10), cl, corelisters.NewServiceLister(services), corelisters.NewNodeLister(nodes))
		b.Liveness = loop.NewLiveness()
		go b.Run(t.Context())
		handler := b.Handler()
		write := func(s *v1alpha1.SpeakerStatus) {
			t.Helper()
			var before v1alpha1.SpeakerStatus
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(s), &before); err != nil {
				t.Fatal(err)
			}
			s.ResourceVersion = before.ResourceVersion
			if err := cl.Update(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			handler.OnUpdate(&before, s)
		}
		after := func(wait time.Duration, want string) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			var peer v1alpha1.BGPPeer
			if err := cl.Get(t.Context(), client.ObjectKey{Name: "tor"}, &peer); err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(peer.Status.Conditions, v1alpha1.ConditionEstablished)
			if c == nil {
				t.Fatal("no condition")
			}
			ccmtest.Expect(t, conditionText(*c), want)
		}
		const up = "True Established: 2 of 2 nodes"
		after(2*time.Second, up)
		write(reports("a", "b", v1alpha1.MemberSilent))
		after(watch.AbsentFor-2*time.Second, up)
		write(reports("a", "b", v1alpha1.MemberObserver)) // it was restarted
		after(2*watch.AbsentFor, up)
		write(reports("a", "b", v1alpha1.MemberSilent))
		after(watch.AbsentFor-time.Second, up)
		after(3*time.Second, "Unknown NotReported: 1 of 2 nodes: b: its speaker is unreachable from the others")
		stopped := reports("a", "b", v1alpha1.MemberSilent)
		stopped.Status.Stopped = &metav1.Time{Time: time.Now()}
		write(stopped)
		after(watch.AbsentFor+2*time.Second, "Unknown NotReported: 1 of 2 nodes: a: its speaker has been stopped") // and no speaker reports b
		write(reports("a", "b", v1alpha1.MemberAlive))
		after(2*time.Second, up)
	})
}

// TestTrimSpeaker: the cache keeps what is summarized of a speaker's report, with each node's name once.
func TestTrimSpeaker(t *testing.T) {
	trimmed := func(name string) *v1alpha1.SpeakerStatus {
		full := speaker(name, "tor=Established")
		now := metav1.Now()
		full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
		full.Status.DataPlane = v1alpha1.DataPlaneStatus{Healthy: true, Message: "as planned"}
		full.Status.Alive, full.Status.Stopped, full.Status.Interfaces = "2/3", &now, []v1alpha1.InterfaceStatus{{Name: "eth0", Subnets: []string{"192.0.2.0/24"}}}
		for _, state := range []v1alpha1.MemberState{v1alpha1.MemberLeaving, v1alpha1.MemberSilent, v1alpha1.MemberAlive} {
			node := string(append([]byte("with-"), state...)) // a separate string, as from the API server
			full.Status.Members = append(full.Status.Members, v1alpha1.MemberStatus{Node: node, State: state, Since: &now})
		}
		want := speaker(name, "tor=Established")
		want.Status.Stopped, want.Status.DataPlane.Healthy, want.Status.Interfaces = &now, true, full.Status.Interfaces
		want.Status.Members = []v1alpha1.MemberStatus{
			{Node: "with-Leaving", State: "Leaving"},
			{Node: "with-Silent", State: "Silent"},
			{Node: "with-Alive", State: "Alive"},
		}
		got, err := watch.Speakers(&full)
		if err != nil || !reflect.DeepEqual(got, &want) {
			t.Errorf("got %+v, %v, want %+v", got, err, &want)
		}
		return got.(*v1alpha1.SpeakerStatus)
	}
	a, b := trimmed("a"), trimmed("b")
	for i := range a.Status.Members {
		if unsafe.StringData(a.Status.Members[i].Node) != unsafe.StringData(b.Status.Members[i].Node) {
			t.Errorf("%s is there twice", a.Status.Members[i].Node)
		}
	}
}
