package allocation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	servicehelper "k8s.io/cloud-provider/service/helpers"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// pass runs the responsible controllers on every Service until nothing changes.
func (p *process) pass() {
	lb := &LoadBalancer{p.classes.registrar}
	for before := -1; before != len(p.f.log); {
		before = len(p.f.log)
		for _, svc := range p.f.services() {
			if p.f.settings.Classless(&svc) {
				if _, err := lb.EnsureLoadBalancer(p.f.t.Context(), "", &svc, nil); err != cloudprovider.ImplementedElsewhere {
					p.f.t.Fatal(err)
				}
			}
			if p.classes.concerns(&svc) {
				if err := p.classes.sync(p.f.t.Context(), &svc); err != nil {
					p.f.t.Fatal(err)
				}
			}
		}
	}
}

// add creates a Service of the class; empty: none.
func (f *crashFixture) add(name, class string, change ...func(*v1.Service)) {
	svc := ccmtest.ServiceFor(name, append(change, func(s *v1.Service) {
		s.UID = types.UID(name)
		if class != "" {
			s.Spec.LoadBalancerClass = &class
		}
	})...)
	if err := f.api.Tracker().Add(svc); err != nil {
		f.t.Fatal(err)
	}
}

// is compares a Service with "ADDRESSES RECORD FINALIZERS" or "gone".
func (f *crashFixture) is(name, want string) {
	f.t.Helper()
	got := "gone"
	if svc := f.get(name); svc != nil {
		final := []string{}
		for _, finalizer := range svc.Finalizers {
			final = append(final, map[string]string{servicerecord.Finalizer: "own", servicehelper.LoadBalancerCleanupFinalizer: "shared"}[finalizer])
		}
		have := servicerecord.OutcomeIn(svc)
		got = strings.Join(strings.Fields(fmt.Sprintf("%v %s %s %v", servicerecord.IPs(have.Ingress), have.From, have.Condition.Reason, final)), " ")
	}
	if got != want {
		f.t.Errorf("%s is %s, want %s, by\n%s", name, got, want, strings.Join(f.log, "\n"))
	}
}

// taken changes the Service as another controller does that takes it over.
func taken(svc *v1.Service) { ccmtest.Shows(ccmtest.Elsewhere)(svc) }

// TestPreviouslyManaged: Services that were served before the flags of the program changed. The pool has four
// addresses.
func TestPreviouslyManaged(t *testing.T) {
	for name, c := range map[string]struct {
		class string // of the Services before
		now   *servicerecord.Scope
		final string
	}{
		"no class before, now --only-class":  {"", &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}, "shared"},
		"another --load-balancer-class":      {"ironlb.io/lb", &servicerecord.Scope{Class: "example.com/new", IPMode: "Proxy"}, "own"},
		"another class and now --only-class": {"ironlb.io/lb", &servicerecord.Scope{Class: "example.com/new", OnlyClass: true, IPMode: "Proxy"}, "own"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCrashFixture(t, -1, false)
			for _, s := range []string{"a", "b", "c", "d", "waits"} {
				f.add(s, c.class)
			}
			f.start().pass()
			final := "[" + c.final + "]"
			f.is("a", "[203.0.113.4] web Allocated "+final)
			f.is("waits", "[] PoolExhausted []")
			f.add("never", "example.com/other", taken, func(s *v1.Service) {
				s.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer}
			})

			f.settings = c.now
			f.add("x", c.now.Class)
			f.log = nil
			p := f.start()
			p.pass()
			f.is("x", "[] PoolExhausted []")
			for _, line := range f.log {
				if !strings.Contains(line, `"uid":"x"`) && !strings.Contains(line, `"uid":"waits"`) {
					t.Errorf("wrote %s", line)
				}
			}
			f.is("waits", "[] []")
			for i, s := range []string{"a", "b", "c", "d"} {
				ip := fmt.Sprintf("203.0.113.%d", 4+i)
				f.is(s, fmt.Sprintf("[%s] web Allocated %s", ip, final))
				if got := p.classes.registrar.ledger.Standing(f.get(s)); len(got) != 1 || got[0] != ccmtest.Address(ip, "web") {
					t.Errorf("%s is recorded on %v: its VirtualIP would be deleted", s, got)
				}
			}

			f.change("a", ccmtest.Deleted)
			p.pass()
			f.is("a", "gone")
			f.is("x", "[203.0.113.4] web Allocated [own]")

			f.change("b", ccmtest.Plain)
			p.pass()
			f.is("b", "[] []")
			f.add("y", c.now.Class)
			p.pass()
			f.is("y", "[203.0.113.5] web Allocated [own]")

			f.change("c", taken)
			p.pass()
			f.is("c", "[198.51.100.9] "+strings.ReplaceAll(final, "own", "")) // the shared one now belongs to the other controller
			f.add("z", c.now.Class)
			p.pass()
			f.is("z", "[203.0.113.6] web Allocated [own]")

			f.change("waits", ccmtest.Deleted)
			p.pass()
			f.is("waits", "gone")

			f.change("never", ccmtest.Deleted)
			p.pass()
			f.is("never", "[198.51.100.9] [shared]")

			// Its flags are restored: the others are served as before.
			f.settings = defaults
			f.log = nil
			f.start().pass()
			f.is("d", "[203.0.113.7] web Allocated "+final)
		})
	}
}

// TestPreviouslyManagedWhileDown: the same changes while no controller runs.
func TestPreviouslyManagedWhileDown(t *testing.T) {
	f := newCrashFixture(t, -1, false)
	for _, s := range []string{"a", "b", "c", "d"} {
		f.add(s, "")
	}
	f.start().pass()
	f.change("a", ccmtest.Deleted)
	f.change("b", ccmtest.Plain)
	f.change("c", taken)
	f.change("d", taken)
	f.change("d", ccmtest.Deleted)
	f.settings = &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}
	for _, s := range []string{"w", "x", "y", "z"} {
		f.add(s, "ironlb.io/lb")
	}
	f.start().pass()
	f.is("a", "gone")
	f.is("b", "[] []")
	f.is("c", "[198.51.100.9] [shared]")
	f.is("d", "[198.51.100.9] [shared]")
	for i, s := range []string{"w", "x", "y", "z"} {
		f.is(s, fmt.Sprintf("[203.0.113.%d] web Allocated [own]", 4+i))
	}
}

// TestPreviouslyManagedIsUnchanged: such a Service is not moved by its own request, by its pool, or by a Service that
// shares its address. It takes no room that others wait for.
func TestPreviouslyManagedIsUnchanged(t *testing.T) {
	f := newCrashFixture(t, -1, false)
	f.add("a", "", ccmtest.Annotate("ironlb.io/sharing-key", "k"))
	f.add("b", "", func(s *v1.Service) {
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
		s.Spec.IPFamilyPolicy = ptr.To(v1.IPFamilyPolicyPreferDualStack)
	})
	f.start().pass()
	f.is("a", "[203.0.113.4] web Allocated [shared]")
	f.is("b", "[203.0.113.5] web SecondFamilyPending [shared]")

	f.settings = &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}
	f.log = nil
	p := f.start()
	l := p.classes.registrar.ledger
	var woken []string
	l.Requeue = func(k pools.ServiceKey) { woken = append(woken, k.Name) }
	six, err := pools.ParseRanges([]string{"2001:db8::1/128"})
	if err != nil {
		t.Fatal(err)
	}
	four, err := pools.ParseRanges([]string{"203.0.113.4-203.0.113.7"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetPools([]pools.Pool{{Name: "web", Ranges: four, AutoAssign: true}, {Name: "six", Ranges: six, AutoAssign: true}}) // before it is evaluated for the first time
	p.pass()
	f.change("a", ccmtest.Annotate("ironlb.io/ips", "203.0.113.7", "ironlb.io/reallocate", "true"))
	p.pass()
	// The other family becomes available, with room for only one Service.
	r, err := pools.ParseRanges([]string{"203.0.113.5-203.0.113.7", "2001:db8::1/128"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	p.pass()
	if slices.Contains(woken, "b") {
		t.Errorf("woken %v", woken)
	}
	if len(f.log) > 0 {
		t.Errorf("wrote\n%s", strings.Join(f.log, "\n"))
	}
	if s, _ := l.PoolStatus("web"); fmt.Sprint(s.Draining) != "[default/a]" {
		t.Errorf("draining: %v", s.Draining)
	}
	// a's key still counts: the port is taken.
	share := ccmtest.Annotate("ironlb.io/sharing-key", "k", "ironlb.io/ips", "203.0.113.4")
	f.add("same-port", "ironlb.io/lb", share)
	f.add("six", "ironlb.io/lb", func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} })
	p.pass()
	f.is("same-port", "[] AddressOutsidePools []")
	f.is("six", "[2001:db8::1] web Allocated [own]")
}

// TestFinalizerOfOthers: on a Service without IronLB's record, the service controller's finalizer belongs to another
// controller.
func TestFinalizerOfOthers(t *testing.T) {
	f := newCrashFixture(t, -1, false)
	f.settings = &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}
	f.add("a", "example.com/lb", taken, ccmtest.Deleted, func(s *v1.Service) {
		s.Finalizers = []string{servicerecord.Finalizer, servicehelper.LoadBalancerCleanupFinalizer}
	})
	f.add("b", "", ccmtest.Deleted, func(s *v1.Service) {
		s.Finalizers = []string{servicerecord.Finalizer, servicehelper.LoadBalancerCleanupFinalizer}
	})
	f.start().pass()
	f.is("a", "[198.51.100.9] [shared]")
	f.is("b", "[] [shared]")
}

// TestSeen: which changes the class controller receives, and which it queues.
func TestSeen(t *testing.T) {
	ours := func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("ironlb.io/lb") }
	held := func(s *v1.Service) {
		ccmtest.Shows("203.0.113.4")(s)
		ccmtest.Given("web")(s)
	}
	shared := func(s *v1.Service) { s.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer} }
	only := &servicerecord.Scope{Class: "ironlb.io/lb", OnlyClass: true, IPMode: "Proxy"}
	for name, c := range map[string]struct {
		settings *servicerecord.Scope
		svc      *v1.Service
		change   func(*v1.Service)
		want     bool
	}{
		"ours gets a label":                 {defaults, ccmtest.ServiceFor("s", ours), func(s *v1.Service) { s.Labels = map[string]string{"a": "b"} }, true},
		"ours requests another address":     {defaults, ccmtest.ServiceFor("s", ours), ccmtest.Annotate("ironlb.io/ips", "203.0.113.5"), true},
		"ours loses its finalizer":          {defaults, ccmtest.ServiceFor("s", ours, func(s *v1.Service) { s.Finalizers = []string{servicerecord.Finalizer} }), func(s *v1.Service) { s.Finalizers = nil }, true},
		"ours shows another address":        {defaults, ccmtest.ServiceFor("s", ours, held), taken, false}, // handled by divergence
		"ours is deleted":                   {defaults, ccmtest.ServiceFor("s", func(s *v1.Service) { s.Finalizers = []string{servicerecord.Finalizer} }, ours), ccmtest.Deleted, true},
		"of no class, deleted":              {defaults, ccmtest.ServiceFor("s", held), ccmtest.Deleted, false},
		"of no class, ClusterIP":            {defaults, ccmtest.ServiceFor("s", held, shared), ccmtest.Plain, false},
		"of no class, ClusterIP, unowned":   {defaults, ccmtest.ServiceFor("s", held), ccmtest.Plain, true},
		"a previous one is taken over":      {only, ccmtest.ServiceFor("s", held), taken, true},
		"a previous one is deleted":         {only, ccmtest.ServiceFor("s", held), ccmtest.Deleted, true},
		"a previous one becomes ClusterIP":  {only, ccmtest.ServiceFor("s", held), ccmtest.Plain, true},
		"a previous one: nothing changes":   {only, ccmtest.ServiceFor("s", held), func(*v1.Service) {}, false},
		"one that never was ours":           {only, ccmtest.ServiceFor("s"), taken, false},
		"one that never was ours, deleted":  {only, ccmtest.ServiceFor("s", taken), ccmtest.Deleted, false},
		"ours gets a class that is another": {defaults, ccmtest.ServiceFor("s", held), func(s *v1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }, true},
	} {
		f := newCrashFixture(t, -1, false)
		f.settings = c.settings
		classes := f.start().classes
		after := c.svc.DeepCopy()
		c.change(after)
		classes.handler().OnUpdate(c.svc, after)
		if got := classes.queue.Len() > 0; got != c.want {
			t.Errorf("%s: queued %v", name, got)
		}
	}
}

// TestReleasedToAnotherClass: a Service that gets another controller's class is left to that controller. What that one
// wrote stays.
func TestReleasedToAnotherClass(t *testing.T) {
	for name, before := range map[string]string{"no class": "", "our class": "ironlb.io/lb"} {
		f := newCrashFixture(t, -1, false)
		f.add("a", before)
		p := f.start()
		p.pass()
		f.change("a", func(s *v1.Service) {
			ccmtest.Plain(s) // an unobserved change
			taken(s)
			s.Spec.Type, s.Spec.LoadBalancerClass = v1.ServiceTypeLoadBalancer, ptr.To("example.com/lb")
		})
		lb := &LoadBalancer{p.classes.registrar}
		if _, exists, err := lb.GetLoadBalancer(t.Context(), "", f.get("a")); err != nil || exists {
			t.Errorf("%s: the service controller would clear its status: %v, %v", name, exists, err)
		}
		p.pass()
		if final := "[shared]"; before == "" { // which the service controller takes off
			f.is("a", "[198.51.100.9] "+final)
		} else {
			f.is("a", "[198.51.100.9] []")
		}
		f.add("b", "", ccmtest.Annotate("ironlb.io/ips", "203.0.113.4"))
		p.pass()
		f.is("b", "[203.0.113.4] web Allocated [shared]")
	}
}

// TestOutcomeRecordsAddresses: the outcome records exactly the addresses that the Service holds, for every reason.
func TestOutcomeRecordsAddresses(t *testing.T) {
	lease := []pools.Address{ccmtest.Address("203.0.113.4", "web"), ccmtest.Address("2001:db8::", "six")}
	requested := ccmtest.Address("203.0.113.40", "").Addr
	for _, reason := range []pools.Reason{pools.Allocated, pools.SecondFamilyPending, pools.Draining, pools.AddressTaken, pools.QuotaReached} {
		for n := range 3 {
			o := defaults.OutcomeOf(ccmtest.ServiceFor("s"), lease[:n], reason, "message that names 203.0.113.40")
			svc := ccmtest.ServiceFor("s", ccmtest.Shows("203.0.113.4", "2001:db8::"), ccmtest.Annotate("ironlb.io/allocated-from", servicerecord.AllocatedFrom(lease)))
			svc.Status.Conditions = []metav1.Condition{o.Condition}
			if o.Record != "" {
				svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAddresses, Message: o.Record})
			}
			for i, a := range lease {
				if pool, got := servicerecord.RecordedFor(svc, a.Addr); got != (i < n) || got && pool != a.Pool {
					t.Errorf("%s, %d held: %s of pool %q recorded %v in %+v", reason, n, a.Addr, pool, got, svc.Status.Conditions)
				}
			}
			if _, recorded := servicerecord.RecordedFor(svc, requested); recorded {
				t.Errorf("%s: %v is recorded as held in %+v", reason, requested, svc.Status.Conditions)
			}
		}
	}
}
