package virtualip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/ccm/placement"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// registry is a fake API of VirtualIPs. It counts writes and refuses those of some names.
type registry struct {
	t      *testing.T
	client client.WithWatch
	writer *vipWriter
	events *record.FakeRecorder
	writes []string
	refuse string
	// created is called between a creation and its response.
	created func(client.Object)
	now     time.Time
}

func newRegistry(t *testing.T) *registry {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	r := &registry{t: t, events: record.NewFakeRecorder(1000), created: func(client.Object) {}, now: time.Now()}
	var mu sync.Mutex
	logWrite := func(verb, name string) error {
		mu.Lock()
		defer mu.Unlock()
		r.writes = append(r.writes, verb+" "+name)
		if name == r.refuse {
			return errors.New("refused")
		}
		return nil
	}
	r.client = fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID("1") // the fake sets none
			o.SetGeneration(1)
			err := errors.Join(logWrite("create", o.GetName()), c.Create(ctx, o, opts...))
			r.created(o)
			return err
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := logWrite("patch", o.GetName()); err != nil {
				return err
			}
			gen := o.GetGeneration() + 1
			err := c.Patch(ctx, o, p, opts...)
			o.SetGeneration(gen) // nor does it count generations
			return err
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return errors.Join(logWrite("delete", o.GetName()), c.Delete(ctx, o, opts...))
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, a runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			r.writes = append(r.writes, "apply "+sub)
			return c.SubResource(sub).Apply(ctx, a, opts...)
		},
	}).Build()
	r.writer = newVIPWriter(slog.New(slog.DiscardHandler), r.events, r.client, func() {})
	r.writer.atOnce = 1 // in order
	return r
}

// seen returns the content of a cache that has caught up.
func (r *registry) seen() map[string]*v1alpha1.VirtualIP {
	var list v1alpha1.VirtualIPList
	if err := r.client.List(context.Background(), &list); err != nil {
		r.t.Fatal(err)
	}
	seen := map[string]*v1alpha1.VirtualIP{}
	for i := range list.Items {
		v := &list.Items[i]
		if w, ok := r.writer.written[v.Name]; ok {
			v.Generation = w.vip.Generation
		}
		seen[v.Name] = v
	}
	return seen
}

func (r *registry) write(seen map[string]*v1alpha1.VirtualIP, want ...wantedVIP) error {
	r.writes = nil
	newer, err := r.writer.write(context.Background(), r.writer.existing(r.now, seen), want)
	if newer {
		r.writes = append(r.writes, "conflict")
	}
	return err
}

func (r *registry) expect(err error, writes ...string) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
	if !slices.Equal(r.writes, writes) {
		r.t.Errorf("wrote %q, want %q", r.writes, writes)
	}
}

func vip(name string, nodes ...string) wantedVIP {
	return wantedVIP{
		name: name, reason: placement.Created,
		spec: v1alpha1.VirtualIPSpec{
			Addresses: []string{name}, Services: []v1alpha1.ServiceReference{{Namespace: "default", Name: "s"}}, Nodes: nodes,
		},
	}
}

func TestWritesOnlyChanges(t *testing.T) {
	r := newRegistry(t)
	a, b := vip("192.0.2.1", "n1", "n2"), vip("192.0.2.2", "n2", "n1")
	stale := r.seen()
	r.expect(r.write(stale, a, b), "create 192.0.2.1", "create 192.0.2.2")
	r.expect(r.write(stale, a, b)) // the cache lags
	r.expect(r.write(r.seen(), a, b))

	stale = r.seen()
	a.spec.Nodes = []string{"n2", "n1"}
	r.expect(r.write(stale, a, b), "patch 192.0.2.1")
	r.expect(r.write(stale, a, b))
	if got := fmt.Sprint(r.seen()["192.0.2.1"].Spec.Nodes); got != "[n2 n1]" {
		t.Errorf("nodes are %s", got)
	}
	stale = r.seen()
	r.expect(r.write(stale, a), "delete 192.0.2.2")
	r.expect(r.write(stale, a))
	r.expect(r.write(r.seen(), a))
	r.expect(r.write(r.seen(), a, b), "create 192.0.2.2")
}

// A VirtualIP that is deleted before the next pass is created again, although the cache shows it at no pass.
func TestDeletedAtOnce(t *testing.T) {
	r := newRegistry(t)
	a := vip("192.0.2.1", "n1")
	never := r.seen()
	r.expect(r.write(never, a), "create 192.0.2.1")
	made := r.seen()["192.0.2.1"]
	if err := r.client.Delete(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	p := Placer{writer: r.writer, Trigger: make(chan struct{}, 1)}
	p.Handler().OnDelete(made)
	if len(p.Trigger) != 1 {
		t.Error("placement is not triggered")
	}
	r.expect(r.write(never, a), "create 192.0.2.1")
	r.expect(r.write(never, a))
}

// TestDeletedBeforeTheAnswer: the watch shows the deletion of a VirtualIP before the response to its creation.
func TestDeletedBeforeTheAnswer(t *testing.T) {
	r := newRegistry(t)
	a, never := vip("192.0.2.1", "n1"), r.seen()
	p := Placer{writer: r.writer, Trigger: make(chan struct{}, 1)}
	r.created = func(made client.Object) {
		if err := r.client.Delete(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		p.Handler().OnDelete(made)
	}
	r.expect(r.write(never, a), "create 192.0.2.1", "delete 192.0.2.1")
	r.created = func(client.Object) {}
	r.expect(r.write(never, a), "create 192.0.2.1")
	r.expect(r.write(never, a))
}

// TestDeletedWhileTheWatchIsBroken: a VirtualIP is created and deleted between two lists of the cache, without an
// event. It is created again at the time that the writer returns.
func TestDeletedWhileTheWatchIsBroken(t *testing.T) {
	r := newRegistry(t)
	a, never := vip("192.0.2.1", "n1"), r.seen()
	r.expect(r.write(never, a), "create 192.0.2.1")
	if err := r.client.Delete(t.Context(), r.seen()["192.0.2.1"]); err != nil {
		t.Fatal(err)
	}
	at := r.writer.expires()
	if !at.After(r.now) {
		t.Fatalf("next evaluation at %v, it is %v", at, r.now)
	}
	r.now = at.Add(-time.Millisecond)
	r.expect(r.write(never, a))
	r.now = at
	r.expect(r.write(never, a), "create 192.0.2.1")
	if err := r.write(r.seen(), a); err != nil || !r.writer.expires().IsZero() {
		t.Errorf("%v, expires at %v though the cache shows all", err, r.writer.expires())
	}
}

func TestOneFailureHoldsUpNoOther(t *testing.T) {
	r := newRegistry(t)
	r.refuse = "192.0.2.1"
	err := r.write(r.seen(), vip("192.0.2.1", "n1"), vip("192.0.2.2", "n1"))
	if err == nil || !strings.Contains(err.Error(), "creating VirtualIP 192.0.2.1") {
		t.Errorf("got error %v", err)
	}
	if !slices.Equal(r.writes, []string{"create 192.0.2.1", "create 192.0.2.2"}) {
		t.Errorf("wrote %q", r.writes)
	}
}

func TestNoEligibleNode(t *testing.T) {
	r := newRegistry(t)
	none := vip("192.0.2.1")
	none.whyNone = match{reason: reasonNoNodeMatches, message: "label a node"}
	stale := r.seen()
	r.expect(r.write(stale, none), "create 192.0.2.1", "apply status")
	r.expect(r.write(stale, none))
	r.expect(r.write(r.seen(), none))
	if !meta.IsStatusConditionTrue(r.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode) {
		t.Error("the condition is not there")
	}
	none.whyNone = match{reason: reasonNodesExcluded, message: "n1 (being deleted)"}
	r.expect(r.write(r.seen(), none), "apply status")
	r.expect(r.write(r.seen(), none))
	if c := meta.FindStatusCondition(r.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode); c.Reason != reasonNodesExcluded {
		t.Errorf("the condition is %+v", c)
	}
	r.expect(r.write(r.seen(), vip("192.0.2.1", "n1")), "patch 192.0.2.1", "apply status")
	if !meta.IsStatusConditionFalse(r.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode) {
		t.Error("the condition has not been cleared")
	}
	r.expect(r.write(r.seen(), vip("192.0.2.1", "n1")))
}

// TestStatusWins: a list does not overwrite a status that has not been read.
func TestStatusWins(t *testing.T) {
	r := newRegistry(t)
	r.expect(r.write(r.seen(), vip("192.0.2.1", "n1", "n2")), "create 192.0.2.1")
	stale := r.seen()
	r.hold("192.0.2.1", "n2")
	r.expect(r.write(stale, vip("192.0.2.1", "n1", "n3", "n2")), "patch 192.0.2.1", "conflict")
	if v := r.seen()["192.0.2.1"]; v.Status.Node != "n2" || !slices.Equal(v.Spec.Nodes, []string{"n1", "n2"}) {
		t.Errorf("held by %s, nodes %v", v.Status.Node, v.Spec.Nodes)
	}
	r.expect(r.write(r.seen(), vip("192.0.2.1", "n2", "n3", "n1")), "patch 192.0.2.1")
}

// hold writes the status as the node's speaker does.
func (r *registry) hold(name, node string) {
	r.t.Helper()
	v := r.seen()[name]
	v.Status.Node = node
	if err := r.client.Status().Update(context.Background(), v); err != nil {
		r.t.Fatal(err)
	}
}

// TestManyAtOnce writes concurrently as the process does. Run it with -race.
func TestManyAtOnce(t *testing.T) {
	r := newRegistry(t)
	r.writer.atOnce = vipWrites
	var want []wantedVIP
	var creates, patches, removes []string
	for i := range 100 {
		name := fmt.Sprintf("192.0.2.%d", i)
		want = append(want, vip(name, "n1"))
		creates, patches, removes = append(creates, "create "+name), append(patches, "patch "+name), append(removes, "delete "+name)
	}
	sorted := func(err error, writes []string) {
		t.Helper()
		slices.Sort(r.writes)
		r.expect(err, slices.Sorted(slices.Values(writes))...)
	}
	stale := r.seen()
	sorted(r.write(stale, want...), creates)
	sorted(r.write(stale, want...), nil)
	for i := range 50 {
		want[i].spec.Nodes = []string{"n2"}
	}
	stale = r.seen()
	err := r.write(stale, want[:50]...)
	if first := slices.IndexFunc(r.writes, func(w string) bool { return strings.HasPrefix(w, "delete") }); first != 50 {
		t.Errorf("the first delete is write %d, want 50: after all changes", first)
	}
	sorted(err, slices.Concat(patches[:50], removes[50:]))
	sorted(r.write(stale, want[:50]...), nil)
	if got := len(r.seen()); got != 50 {
		t.Errorf("%d are there, want 50", got)
	}
}

// TestSameSpec fails if VirtualIPSpec has a field that sameSpec does not compare.
func TestSameSpec(t *testing.T) {
	full := func() v1alpha1.VirtualIPSpec {
		s := vip("192.0.2.1", "n1").spec
		v := reflect.ValueOf(s)
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("fill %s in this test", v.Type().Field(i).Name)
			}
		}
		return s
	}
	if !sameSpec(full(), full()) {
		t.Error("two equal specs compare as different")
	}
	for i := range reflect.TypeFor[v1alpha1.VirtualIPSpec]().NumField() {
		other := full()
		reflect.ValueOf(&other).Elem().Field(i).SetZero()
		if sameSpec(full(), other) {
			t.Errorf("specs that differ in field %s compare as equal", reflect.TypeOf(other).Field(i).Name)
		}
	}
}
