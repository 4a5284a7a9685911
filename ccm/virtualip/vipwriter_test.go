package virtualip

import (
	"bytes"
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
	"github.com/ironlb/ironlb/loglines"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// writerFixture is a fake API of VirtualIPs. It counts writes and refuses those of some names.
type writerFixture struct {
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

func newWriterFixture(t *testing.T) *writerFixture {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	f := &writerFixture{t: t, events: record.NewFakeRecorder(1000), created: func(client.Object) {}, now: time.Now()}
	var mu sync.Mutex
	logWrite := func(verb, name string) error {
		mu.Lock()
		defer mu.Unlock()
		f.writes = append(f.writes, verb+" "+name)
		if name == f.refuse {
			return errors.New("refused")
		}
		return nil
	}
	f.client = fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&v1alpha1.VirtualIP{}, &v1alpha1.IPAddressPool{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID("1") // the fake sets none
			o.SetGeneration(1)
			err := errors.Join(logWrite("create", o.GetName()), c.Create(ctx, o, opts...))
			f.created(o)
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
			f.writes = append(f.writes, "apply "+sub)
			return c.SubResource(sub).Apply(ctx, a, opts...)
		},
	}).Build()
	f.writer = newVIPWriter(slog.New(slog.DiscardHandler), f.events, f.client, func() {})
	f.writer.atOnce = 1 // in order
	return f
}

// seen returns the content of a cache that has caught up.
func (f *writerFixture) seen() map[string]*v1alpha1.VirtualIP {
	var list v1alpha1.VirtualIPList
	if err := f.client.List(context.Background(), &list); err != nil {
		f.t.Fatal(err)
	}
	seen := map[string]*v1alpha1.VirtualIP{}
	for i := range list.Items {
		v := &list.Items[i]
		if w, ok := f.writer.written[v.Name]; ok {
			v.Generation = w.vip.Generation
		}
		seen[v.Name] = v
	}
	return seen
}

func (f *writerFixture) write(seen map[string]*v1alpha1.VirtualIP, want ...wantedVIP) error {
	f.writes = nil
	newer, err := f.writer.write(context.Background(), f.writer.existing(f.now, seen), want)
	if newer {
		f.writes = append(f.writes, "conflict")
	}
	return err
}

func (f *writerFixture) expect(err error, writes ...string) {
	f.t.Helper()
	if err != nil {
		f.t.Error(err)
	}
	if !slices.Equal(f.writes, writes) {
		f.t.Errorf("wrote %q, want %q", f.writes, writes)
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
	f := newWriterFixture(t)
	a, b := vip("192.0.2.1", "n1", "n2"), vip("192.0.2.2", "n2", "n1")
	stale := f.seen()
	f.expect(f.write(stale, a, b), "create 192.0.2.1", "create 192.0.2.2")
	f.expect(f.write(stale, a, b)) // the cache lags
	f.expect(f.write(f.seen(), a, b))

	stale = f.seen()
	a.spec.Nodes = []string{"n2", "n1"}
	f.expect(f.write(stale, a, b), "patch 192.0.2.1")
	f.expect(f.write(stale, a, b))
	if got := fmt.Sprint(f.seen()["192.0.2.1"].Spec.Nodes); got != "[n2 n1]" {
		t.Errorf("nodes are %s", got)
	}
	stale = f.seen()
	f.expect(f.write(stale, a), "delete 192.0.2.2")
	f.expect(f.write(stale, a))
	f.expect(f.write(f.seen(), a))
	f.expect(f.write(f.seen(), a, b), "create 192.0.2.2")
}

// A VirtualIP that is deleted before the next pass is created again, although the cache shows it at no pass.
func TestDeletedAtOnce(t *testing.T) {
	f := newWriterFixture(t)
	a := vip("192.0.2.1", "n1")
	never := f.seen()
	f.expect(f.write(never, a), "create 192.0.2.1")
	made := f.seen()["192.0.2.1"]
	if err := f.client.Delete(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	p := Placer{writer: f.writer, Trigger: make(chan struct{}, 1)}
	p.Handler().OnDelete(made)
	if len(p.Trigger) != 1 {
		t.Error("placement is not triggered")
	}
	f.expect(f.write(never, a), "create 192.0.2.1")
	f.expect(f.write(never, a))
}

// TestDeletedBeforeTheAnswer: the watch shows the deletion of a VirtualIP before the response to its creation.
func TestDeletedBeforeTheAnswer(t *testing.T) {
	f := newWriterFixture(t)
	a, never := vip("192.0.2.1", "n1"), f.seen()
	p := Placer{writer: f.writer, Trigger: make(chan struct{}, 1)}
	f.created = func(made client.Object) {
		if err := f.client.Delete(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		p.Handler().OnDelete(made)
	}
	f.expect(f.write(never, a), "create 192.0.2.1", "delete 192.0.2.1")
	f.created = func(client.Object) {}
	f.expect(f.write(never, a), "create 192.0.2.1")
	f.expect(f.write(never, a))
}

// TestDeletedWhileTheWatchIsBroken: a VirtualIP is created and deleted between two lists of the cache, without an
// event. It is created again at the time that the writer returns.
func TestDeletedWhileTheWatchIsBroken(t *testing.T) {
	f := newWriterFixture(t)
	a, never := vip("192.0.2.1", "n1"), f.seen()
	f.expect(f.write(never, a), "create 192.0.2.1")
	if err := f.client.Delete(t.Context(), f.seen()["192.0.2.1"]); err != nil {
		t.Fatal(err)
	}
	at := f.writer.expires()
	if !at.After(f.now) {
		t.Fatalf("next evaluation at %v, it is %v", at, f.now)
	}
	f.now = at.Add(-time.Millisecond)
	f.expect(f.write(never, a))
	f.now = at
	f.expect(f.write(never, a), "create 192.0.2.1")
	if err := f.write(f.seen(), a); err != nil || !f.writer.expires().IsZero() {
		t.Errorf("%v, expires at %v though the cache shows all", err, f.writer.expires())
	}
}

func TestOneFailureHoldsUpNoOther(t *testing.T) {
	f := newWriterFixture(t)
	f.refuse = "192.0.2.1"
	err := f.write(f.seen(), vip("192.0.2.1", "n1"), vip("192.0.2.2", "n1"))
	if err == nil || !strings.Contains(err.Error(), "creating VirtualIP 192.0.2.1") {
		t.Errorf("got error %v", err)
	}
	if !slices.Equal(f.writes, []string{"create 192.0.2.1", "create 192.0.2.2"}) {
		t.Errorf("wrote %q", f.writes)
	}
}

func TestNoEligibleNode(t *testing.T) {
	f := newWriterFixture(t)
	none := vip("192.0.2.1")
	none.whyNone = match{reason: reasonNoNodeMatches, message: "label a node"}
	stale := f.seen()
	f.expect(f.write(stale, none), "create 192.0.2.1", "apply status")
	f.expect(f.write(stale, none))
	f.expect(f.write(f.seen(), none))
	if !meta.IsStatusConditionTrue(f.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode) {
		t.Error("the condition is not there")
	}
	none.whyNone = match{reason: reasonNodesExcluded, message: "n1 (being deleted)"}
	f.expect(f.write(f.seen(), none), "apply status")
	f.expect(f.write(f.seen(), none))
	if c := meta.FindStatusCondition(f.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode); c.Reason != reasonNodesExcluded {
		t.Errorf("the condition is %+v", c)
	}
	f.expect(f.write(f.seen(), vip("192.0.2.1", "n1")), "patch 192.0.2.1", "apply status")
	if !meta.IsStatusConditionFalse(f.seen()["192.0.2.1"].Status.Conditions, v1alpha1.ConditionNoEligibleNode) {
		t.Error("the condition has not been cleared")
	}
	f.expect(f.write(f.seen(), vip("192.0.2.1", "n1")))
}

// TestStatusWins: a list does not overwrite a status that has not been read.
func TestStatusWins(t *testing.T) {
	f := newWriterFixture(t)
	f.expect(f.write(f.seen(), vip("192.0.2.1", "n1", "n2")), "create 192.0.2.1")
	stale := f.seen()
	f.hold("192.0.2.1", "n2")
	f.expect(f.write(stale, vip("192.0.2.1", "n1", "n3", "n2")), "patch 192.0.2.1", "conflict")
	if v := f.seen()["192.0.2.1"]; v.Status.Node != "n2" || !slices.Equal(v.Spec.Nodes, []string{"n1", "n2"}) {
		t.Errorf("held by %s, nodes %v", v.Status.Node, v.Spec.Nodes)
	}
	f.expect(f.write(f.seen(), vip("192.0.2.1", "n2", "n3", "n1")), "patch 192.0.2.1")
}

// hold writes the status as the node's speaker does.
func (f *writerFixture) hold(name, node string) {
	f.t.Helper()
	v := f.seen()[name]
	v.Status.Node = node
	if err := f.client.Status().Update(context.Background(), v); err != nil {
		f.t.Fatal(err)
	}
}

// TestManyAtOnce writes concurrently as the process does, and logs one line for each kind of change. Run it with -race.
func TestManyAtOnce(t *testing.T) {
	f := newWriterFixture(t)
	f.writer.atOnce = vipWrites
	var log bytes.Buffer
	f.writer.lines = loglines.New(slog.New(slog.NewTextHandler(&log, nil)))
	var want []wantedVIP
	var creates, patches, removes []string
	for i := range 100 {
		name := fmt.Sprintf("192.0.2.%d", i)
		want = append(want, vip(name, "n1"))
		creates, patches, removes = append(creates, "create "+name), append(patches, "patch "+name), append(removes, "delete "+name)
	}
	sorted := func(err error, writes []string) {
		t.Helper()
		slices.Sort(f.writes)
		f.expect(err, slices.Sorted(slices.Values(writes))...)
	}
	stale := f.seen()
	sorted(f.write(stale, want...), creates)
	sorted(f.write(stale, want...), nil)
	for i := range 50 {
		want[i].spec.Nodes = []string{"n2"}
	}
	stale = f.seen()
	err := f.write(stale, want[:50]...)
	if first := slices.IndexFunc(f.writes, func(w string) bool { return strings.HasPrefix(w, "delete") }); first != 50 {
		t.Errorf("the first delete is write %d, want 50: after all changes", first)
	}
	sorted(err, slices.Concat(patches[:50], removes[50:]))
	sorted(f.write(stale, want[:50]...), nil)
	if got := len(f.seen()); got != 50 {
		t.Errorf("%d are there, want 50", got)
	}
	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	for i, want := range []string{`"address placed" vip="`, `"placement changed" vip="`, `"address withdrawn" vip="`} {
		if len(lines) != 3 || !strings.Contains(lines[i], want) || !strings.Contains(lines[i], " times="+[]string{"100", "50", "50"}[i]) {
			t.Fatalf("logged:\n%s", &log)
		}
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
