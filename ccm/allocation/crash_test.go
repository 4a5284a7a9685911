package allocation

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// crashFixture is an API server with Services of IronLB's class. Its connection breaks at a chosen write.
type crashFixture struct {
	t        *testing.T
	api      *fake.Clientset
	settings *servicerecord.Scope
	left     int  // writes until the connection breaks; negative: it does not
	applied  bool // the write at the break is applied, only its response is lost
	blip     bool // only that one write fails, and the controller continues
	log      []string
}

var errCut = errors.New("connection cut")

func newCrashFixture(t *testing.T, left int, applied bool) *crashFixture {
	f := &crashFixture{t: t, api: fake.NewClientset(), settings: defaults, left: left, applied: applied}
	through := k8stesting.ObjectReaction(f.api.Tracker())
	f.api.PrependReactor("patch", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if f.left == 0 && !f.blip {
			return true, nil, errCut
		}
		f.left--
		f.log = append(f.log, string(a.(k8stesting.PatchAction).GetPatch()))
		if f.left == 0 && !f.applied {
			return true, nil, errCut
		}
		_, obj, err := through(a)
		f.bury()
		f.noneTwice()
		if f.left == 0 {
			err = errCut
		}
		return true, obj, err
	})
	return f
}

var servicesResource = v1.SchemeGroupVersion.WithResource("services")

func (f *crashFixture) services() []v1.Service {
	obj, err := f.api.Tracker().List(servicesResource, v1.SchemeGroupVersion.WithKind("Service"), "")
	if err != nil {
		f.t.Fatal(err)
	}
	return obj.(*v1.ServiceList).Items
}

func (f *crashFixture) get(name string) *v1.Service {
	obj, err := f.api.Tracker().Get(servicesResource, "default", name)
	if err != nil {
		return nil
	}
	return obj.(*v1.Service)
}

func (f *crashFixture) create(name string, change ...func(*v1.Service)) {
	svc := ccmtest.ServiceFor(name, append(change, func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb"); s.UID = "uid-" + s.UID })...)
	if err := f.api.Tracker().Add(svc); err != nil {
		f.t.Fatal(err)
	}
}

func (f *crashFixture) change(name string, edit func(*v1.Service)) {
	svc := f.get(name).DeepCopy()
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	edit(svc)
	if err := f.api.Tracker().Update(servicesResource, svc, "default"); err != nil {
		f.t.Fatal(err)
	}
	f.bury()
}

// bury removes the Services in deletion without a finalizer, as the API server does.
func (f *crashFixture) bury() {
	for _, svc := range f.services() {
		if svc.DeletionTimestamp != nil && len(svc.Finalizers) == 0 {
			if err := f.api.Tracker().Delete(servicesResource, "default", svc.Name); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// noneTwice fails if two Services show the same address.
func (f *crashFixture) noneTwice() {
	by := map[string]string{}
	for _, svc := range f.services() {
		if slices.Contains(servicerecord.IPs(svc.Status.LoadBalancer.Ingress), ccmtest.Elsewhere) {
			continue
		}
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if other, ok := by[in.IP]; ok {
				f.t.Errorf("%s and %s both show %s after\n%s", other, svc.Name, in.IP, strings.Join(f.log, "\n"))
			}
			by[in.IP] = svc.Name
		}
		if len(svc.Status.LoadBalancer.Ingress) > 0 && svc.Annotations[v1alpha1.AnnotationAllocatedFrom] != "" && !servicerecord.HasFinalizer(&svc, servicerecord.FinalizerOf(&svc)) {
			f.t.Errorf("%s shows an address without the finalizer", svc.Name)
		}
		if (svc.Annotations[v1alpha1.AnnotationAllocatedFrom] != "") != (len(svc.Status.LoadBalancer.Ingress) > 0) && svc.Spec.Type == v1.ServiceTypeLoadBalancer {
			f.t.Errorf("%s has the annotation without the address, or the reverse", svc.Name)
		}
	}
}

// process is one run of the controller.
type process struct {
	f       *crashFixture
	classes *classController
}

func (f *crashFixture) start() *process {
	l := NewLedger(slog.New(slog.DiscardHandler), f.settings)
	l.Requeue, l.PoolsChanged = func(pools.ServiceKey) {}, func() {}
	r := &Registrar{Log: l.log, events: record.NewFakeRecorder(1000), settings: f.settings, ledger: l, api: f.api.CoreV1()}
	ranges, err := pools.ParseRanges([]string{"203.0.113.4-203.0.113.7"})
	if err != nil {
		f.t.Fatal(err)
	}
	l.SetPools([]pools.Pool{{Name: "web", Ranges: ranges, AutoAssign: true}})
	l.Adopt(f.services())
	return &process{f, newClassController(r, nil, 1)}
}

// settle serves every Service until nothing changes. False: the connection is cut.
func (p *process) settle() bool {
	for range 10 {
		before := len(p.f.log)
		for _, svc := range p.f.services() {
			if err := p.classes.sync(p.f.t.Context(), &svc); errors.Is(err, errCut) {
				if !p.f.blip {
					return false
				}
			} else if err != nil {
				p.f.t.Fatal(err)
			}
		}
		if len(p.f.log) == before {
			return true
		}
	}
	p.f.t.Fatalf("it never settles:\n%s", strings.Join(p.f.log, "\n"))
	return false
}

// TestCrash kills the controller, or fails one write, at every write of a history of assignments, moves, type changes
// and deletions. At no time do two Services show one address, and the next controller always reaches the expected
// state.
func TestCrash(t *testing.T) {
	history := []func(*crashFixture){
		func(f *crashFixture) { f.create("a"); f.create("b"); f.create("c") },
		func(f *crashFixture) { f.create("d", ccmtest.Annotate("ironlb.io/ips", "203.0.113.4")) },
		func(f *crashFixture) { f.change("a", ccmtest.Annotate("ironlb.io/ips", "203.0.113.7")) },
		func(f *crashFixture) {
			f.change("b", func(s *v1.Service) { // the API server clears class and status
				s.Spec.Type, s.Spec.LoadBalancerClass, s.Status.LoadBalancer = v1.ServiceTypeClusterIP, nil, v1.LoadBalancerStatus{}
			})
			f.create("e")
		},
		func(f *crashFixture) {
			f.change("c", func(s *v1.Service) { s.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) })
			f.create("f")
		},
	}
	for mode := range 4 {
		for n := 1; ; n++ {
			f := newCrashFixture(t, n, mode&1 > 0)
			f.blip = mode&2 > 0
			p, alive := f.start(), true
			for _, act := range history {
				act(f) // also while no controller runs
				alive = alive && p.settle()
			}
			crashed := f.left <= 0
			f.left, f.blip = -1, false
			if !f.start().settle() {
				t.Fatal("cut without reason")
			}
			f.wantEnd(fmt.Sprintf("cut at write %d, applied %v, lives on %v", n, f.applied, mode&2 > 0))
			if !crashed {
				if n < 10 {
					t.Errorf("only %d writes", n)
				}
				break
			}
		}
	}
}

func (f *crashFixture) wantEnd(when string) {
	f.t.Helper()
	var got []string
	for _, svc := range f.services() {
		line := svc.Name
		for _, in := range svc.Status.LoadBalancer.Ingress {
			line += " " + in.IP
		}
		if svc.Name == "e" || svc.Name == "f" { // whichever came first
			line = svc.Name + fmt.Sprintf(" %d", len(svc.Status.LoadBalancer.Ingress))
		}
		if c := servicerecord.OutcomeIn(&svc).Condition; c.Type != "" {
			line += " " + c.Reason
		}
		got = append(got, line+fmt.Sprint(svc.Finalizers))
	}
	want := []string{
		"a 203.0.113.7 Allocated[ironlb.io/load-balancer]",
		"b[]",
		"d 203.0.113.4 Allocated[ironlb.io/load-balancer]",
		"e 1 Allocated[ironlb.io/load-balancer]",
		"f 1 Allocated[ironlb.io/load-balancer]",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("%s: got %q, want %q, by\n%s", when, got, want, strings.Join(f.log, "\n"))
	}
}
