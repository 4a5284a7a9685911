package addresspool

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/ccm/allocation"
	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/loop"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// defaults are the settings without any flag.
var defaults = func() *servicerecord.Scope { s := servicerecord.DefaultScope(); return &s }()

// fixture is a leader with its ledger and its pool feed, on a fake API that persists across leader changes.
type fixture struct {
	t      *testing.T
	client client.WithWatch
	writes int
	ledger *allocation.Ledger
	specs  *Specs
	status *Status
	woken  []string
	events *record.FakeRecorder
}

func newFixture(t *testing.T, all ...client.Object) *fixture {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, events: record.NewFakeRecorder(100)}
	f.client = fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&v1alpha1.IPAddressPool{}).WithObjects(all...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			f.writes++
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}).Build()
	f.lead()
	return f
}

// noServices is a cluster without Services.
type noServices struct{}

func (noServices) List(context.Context) ([]v1.Service, error) { return nil, nil }

func (noServices) Start(context.Context) {}

func (noServices) Revisit() {}

func (noServices) Unconfirmed([]v1.Service) []*v1.Service { return nil }

func (noServices) ReleaseUnconfirmed(context.Context, []*v1.Service) []*v1.Service { return nil }

// lead starts over with the state of the API.
func (f *fixture) lead() {
	log := slog.New(slog.DiscardHandler)
	f.woken = nil
	f.ledger = allocation.NewLedger(log, defaults)
	f.ledger.Requeue = func(k pools.ServiceKey) { f.woken = append(f.woken, k.Name) }
	f.specs = &Specs{
		Log: log, Ledger: f.ledger, Reader: f.client, Liveness: loop.NewLiveness(), Trigger: make(chan struct{}, 1), Change: make(chan struct{}, 1),
		Services: noServices{},
	}
	f.status = &Status{
		Log: log, Ledger: f.ledger, Specs: f.specs, Client: f.client, Liveness: f.specs.Liveness, Trigger: make(chan struct{}, 1),
		Events: f.events, Published: map[types.UID]string{},
	}
	f.specs.changed = func() { loop.Trigger(f.specs.Change) }
	f.ledger.PoolsChanged = f.specs.changed
}

// process processes a change of a pool, and returns the pool with its status.
func (f *fixture) process() *v1alpha1.IPAddressPool {
	f.t.Helper()
	ctx := f.t.Context()
	if err := f.specs.apply(ctx); err != nil {
		f.t.Fatal(err)
	}
	if err := f.status.Write(ctx); err != nil {
		f.t.Fatal(err)
	}
	return f.pool()
}

func (f *fixture) pool() *v1alpha1.IPAddressPool {
	f.t.Helper()
	obj := &v1alpha1.IPAddressPool{}
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Name: "web"}, obj); err != nil {
		f.t.Fatal(err)
	}
	return obj
}

// edit gives the pool other addresses.
func (f *fixture) edit(addresses ...string) {
	f.t.Helper()
	obj := f.pool()
	obj.Spec.Addresses = addresses
	if err := f.client.Update(f.t.Context(), obj); err != nil {
		f.t.Fatal(err)
	}
}

// assign returns what the Service gets and the reason.
func (f *fixture) assign(svc *v1.Service) string {
	f.t.Helper()
	d, err := f.ledger.Assign(f.t.Context(), svc)
	if err != nil {
		f.t.Fatal(err)
	}
	f.ledger.Written(svc, d.Lease, servicerecord.Outcome{}, nil)
	return servicerecord.Described(d.Lease) + ", " + string(d.Reason)
}

func webPool(addresses ...string) *v1alpha1.IPAddressPool {
	return &v1alpha1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: addresses},
	}
}

// unreadable passes the CRD's rules: they cannot compare IPv6 ranges.
var unreadable = []string{"2001:db8::10-2001:db8::20", "2001:db8::18-2001:db8::28"}

func (f *fixture) ready(obj *v1alpha1.IPAddressPool) string {
	f.t.Helper()
	c := meta.FindStatusCondition(obj.Status.Conditions, condition.Ready)
	if c == nil {
		f.t.Fatal("no condition Ready")
	}
	return string(c.Status) + " " + c.Reason + " " + c.Message
}

// TestCoolDownEndsOnTime: a Service that waits for an address in cool-down is woken when the cool-down ends, also when
// it is the first one after a long time.
func TestCoolDownEndsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obj := webPool("203.0.113.4")
		obj.Spec.ReuseAfter = &metav1.Duration{Duration: 3 * time.Second}
		f := newFixture(t, obj)
		woken := make(chan string, 10)
		f.ledger.Requeue = func(k pools.ServiceKey) { woken <- k.Name }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.specs.Run(ctx) }()
		synctest.Wait()
		time.Sleep(11 * time.Second) // past the first tick
		first, second := ccmtest.ServiceFor("first"), ccmtest.ServiceFor("second")
		ccmtest.Expect(t, f.assign(first), "203.0.113.4 from pool web, Allocated")
		ccmtest.Expect(t, f.assign(second), "nothing, PoolExhausted")
		if err := f.ledger.Release(ctx, servicerecord.KeyOf(first), first.UID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		if len(woken) > 0 {
			t.Errorf("woken early: %s", <-woken)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if len(woken) != 1 || <-woken != "second" {
			t.Error("the second is not woken when the cool-down is over")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLastGoodOutlivesTheLeader: the last valid configuration of a pool that became invalid stays in force, also for
// the next leader.
func TestLastGoodOutlivesTheLeader(t *testing.T) {
	f := newFixture(t, webPool("203.0.113.4/31"))
	f.process()
	f.ledger.Adopt(nil)
	held := ccmtest.ServiceFor("held")
	ccmtest.Expect(t, f.assign(held), "203.0.113.4 from pool web, Allocated")
	held.Status = ccmtest.ServiceFor("", ccmtest.Shows("203.0.113.4")).Status
	ccmtest.Given("web")(held)
	if obj := f.process(); obj.Status.LastGood != "" {
		t.Errorf("lastGood of a good pool: %s", obj.Status.LastGood)
	}

	f.edit(unreadable...)
	obj := f.process()
	ccmtest.Expect(t, obj.Status.LastGood, `{"addresses":["203.0.113.4/31"]}`)
	if got := f.ready(obj); !strings.HasPrefix(got, "False Invalid spec.addresses[1]: ") || !strings.Contains(got, "The last good configuration stays in use") {
		t.Errorf("Ready: %s", got)
	}

	for range 2 { // leaders
		f.lead()
		writes := f.writes
		if err := f.specs.apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.ledger.Adopt([]v1.Service{*held})
		f.process()
		if f.writes != writes {
			t.Errorf("the next leader wrote %d times", f.writes-writes)
		}
		ccmtest.Expect(t, f.assign(held), "203.0.113.4 from pool web, Allocated")
		ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("more")), "203.0.113.5 from pool web, Allocated")
		if err := f.ledger.Release(t.Context(), servicerecord.KeyOf(ccmtest.ServiceFor("more")), ccmtest.ServiceFor("more").UID); err != nil {
			t.Fatal(err)
		}
	}

	f.edit("203.0.113.4/31", "203.0.113.9")
	obj = f.process()
	ccmtest.Expect(t, obj.Status.LastGood, "")
	ccmtest.Expect(t, f.ready(obj), "True Ready The pool is in use")
}

// TestNeverReadable: a start with an invalid pool and no last valid configuration. Its held addresses are neither lost
// nor assigned to others, and nothing is written to their holders.
func TestNeverReadable(t *testing.T) {
	good := webPool("203.0.113.4/31")
	spare := webPool("203.0.113.4-203.0.113.5") // has the addresses as well
	spare.Name, spare.UID = "spare", "2"
	for name, bad := range map[string]func(*v1alpha1.IPAddressPool){
		"edited without a leader":     func(*v1alpha1.IPAddressPool) {},
		"lastGood cannot be read":     func(p *v1alpha1.IPAddressPool) { p.Status.LastGood = `{"addresses":["203.0.113.4/3` },
		"lastGood cannot be read now": func(p *v1alpha1.IPAddressPool) { p.Status.LastGood = `{"addresses":["203.0.113.5/31"]}` },
	} {
		t.Run(name, func(t *testing.T) {
			obj := good.DeepCopy()
			obj.Spec.Addresses = unreadable
			bad(obj)
			f := newFixture(t, obj)
			f.process()
			held := ccmtest.ServiceFor("held", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"))
			f.ledger.Adopt([]v1.Service{*held})
			ccmtest.Expect(t, f.assign(held), "203.0.113.4 from pool web, Allocated")
			ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("new")), "nothing, NoPool")
			got := f.process()
			if ready := f.ready(got); !strings.Contains(ready, "Until then it assigns no addresses; Services keep the ones that they hold") {
				t.Errorf("Ready: %s", ready)
			}
			if got.Status.AssignedIPv4 != 1 || got.Status.AvailableIPv4 != 0 || got.Status.LastGood != "" {
				t.Errorf("status %+v", got.Status)
			}

			if err := f.client.Create(t.Context(), spare.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			f.process()
			ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("new")), "203.0.113.5 from pool spare, Allocated")
			ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("newer")), "nothing, PoolExhausted")
		})
	}
}

// TestLastGoodIsOfThisObject: the configuration is not used for another pool of the same name.
func TestLastGoodIsOfThisObject(t *testing.T) {
	f := newFixture(t, webPool("203.0.113.4/31"))
	f.process()
	f.ledger.Adopt(nil)
	if err := f.client.Delete(t.Context(), f.pool()); err != nil {
		t.Fatal(err)
	}
	again := webPool(unreadable...)
	again.UID = types.UID("2")
	if err := f.client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if obj := f.process(); obj.Status.LastGood != "" || obj.Status.AvailableIPv4 != 0 {
		t.Errorf("status %+v", obj.Status)
	}
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("new")), "nothing, NoPool")
}
