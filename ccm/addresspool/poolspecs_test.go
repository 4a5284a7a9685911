package addresspool

import (
	"context"
	"log/slog"
	"slices"
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

// office is a leader with its ledger and its pool feed, on a fake API that persists across leader changes.
type office struct {
	t      *testing.T
	client client.WithWatch
	writes int
	ledger *allocation.Ledger
	specs  *Specs
	status *Status
	woken  []string
	events *record.FakeRecorder
}

func newOffice(t *testing.T, all ...client.Object) *office {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, events: record.NewFakeRecorder(100)}
	o.client = fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&v1alpha1.IPAddressPool{}).WithObjects(all...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			o.writes++
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}).Build()
	o.lead()
	return o
}

// noServices is a cluster without Services.
type noServices struct{}

func (noServices) List(context.Context) ([]v1.Service, error) { return nil, nil }

func (noServices) Start(context.Context) {}

func (noServices) Revisit() {}

func (noServices) Unconfirmed([]v1.Service) []*v1.Service { return nil }

func (noServices) ReleaseUnconfirmed(context.Context, []*v1.Service) []*v1.Service { return nil }

// lead starts over with the state of the API.
func (o *office) lead() {
	log := slog.New(slog.DiscardHandler)
	o.woken = nil
	o.ledger = allocation.NewLedger(log, defaults)
	o.ledger.Wake = func(k pools.ServiceKey) { o.woken = append(o.woken, k.Name) }
	o.specs = &Specs{
		Log: log, Ledger: o.ledger, Reader: o.client, Liveness: loop.NewLiveness(), Trigger: make(chan struct{}, 1), Change: make(chan struct{}, 1),
		Services: noServices{},
	}
	o.status = &Status{
		Log: log, Ledger: o.ledger, Specs: o.specs, Client: o.client, Liveness: o.specs.Liveness, Trigger: make(chan struct{}, 1),
		Events: o.events, Published: map[types.UID]string{},
	}
	o.specs.changed = func() { loop.Trigger(o.specs.Change) }
	o.ledger.PoolsChanged = o.specs.changed
}

// process processes a change of a pool, and returns the pool with its status.
func (o *office) process() *v1alpha1.IPAddressPool {
	o.t.Helper()
	ctx := o.t.Context()
	if err := o.specs.apply(ctx); err != nil {
		o.t.Fatal(err)
	}
	if err := o.status.Write(ctx); err != nil {
		o.t.Fatal(err)
	}
	return o.pool()
}

func (o *office) pool() *v1alpha1.IPAddressPool {
	o.t.Helper()
	obj := &v1alpha1.IPAddressPool{}
	if err := o.client.Get(o.t.Context(), client.ObjectKey{Name: "web"}, obj); err != nil {
		o.t.Fatal(err)
	}
	return obj
}

// edit gives the pool other addresses.
func (o *office) edit(addresses ...string) {
	o.t.Helper()
	obj := o.pool()
	obj.Spec.Addresses = addresses
	if err := o.client.Update(o.t.Context(), obj); err != nil {
		o.t.Fatal(err)
	}
}

// assign returns what the Service gets and the reason.
func (o *office) assign(svc *v1.Service) string {
	o.t.Helper()
	d, err := o.ledger.Assign(o.t.Context(), svc)
	if err != nil {
		o.t.Fatal(err)
	}
	o.ledger.Written(svc, d.Lease, servicerecord.Outcome{}, nil)
	return servicerecord.Described(d.Lease) + ", " + string(d.Reason)
}

func webPool(addresses ...string) *v1alpha1.IPAddressPool {
	return &v1alpha1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: addresses},
	}
}

// unreadable passes the CRD's rules: they cannot compare IPv6 ranges.
var unreadable = []string{"2001:db8::10-2001:db8::20", "2001:db8::18-2001:db8::28"}

func (o *office) ready(obj *v1alpha1.IPAddressPool) string {
	o.t.Helper()
	c := meta.FindStatusCondition(obj.Status.Conditions, condition.Ready)
	if c == nil {
		o.t.Fatal("no condition Ready")
	}
	return string(c.Status) + " " + c.Reason + " " + c.Message
}

// TestCoolDownEndsOnTime: a Service that waits for an address in cool-down is woken when the cool-down ends, also when
// it is the first one after a long time.
func TestCoolDownEndsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obj := webPool("203.0.113.4")
		obj.Spec.ReuseAfter = &metav1.Duration{Duration: 3 * time.Second}
		o := newOffice(t, obj)
		woken := make(chan string, 10)
		o.ledger.Wake = func(k pools.ServiceKey) { woken <- k.Name }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- o.specs.Run(ctx) }()
		synctest.Wait()
		time.Sleep(11 * time.Second) // past the first tick
		first, second := ccmtest.ServiceFor("first"), ccmtest.ServiceFor("second")
		ccmtest.Expect(t, o.assign(first), "203.0.113.4 from pool web, Allocated")
		ccmtest.Expect(t, o.assign(second), "nothing, PoolExhausted")
		if err := o.ledger.Release(ctx, servicerecord.KeyOf(first), first.UID); err != nil {
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
	o := newOffice(t, webPool("203.0.113.4/31"))
	o.process()
	o.ledger.Adopt(nil)
	held := ccmtest.ServiceFor("held")
	ccmtest.Expect(t, o.assign(held), "203.0.113.4 from pool web, Allocated")
	held.Status = ccmtest.ServiceFor("", ccmtest.Shows("203.0.113.4")).Status
	ccmtest.Given("web")(held)
	if obj := o.process(); obj.Status.LastGood != "" {
		t.Errorf("lastGood of a good pool: %s", obj.Status.LastGood)
	}

	o.edit(unreadable...)
	obj := o.process()
	ccmtest.Expect(t, obj.Status.LastGood, `{"addresses":["203.0.113.4/31"]}`)
	if got := o.ready(obj); !strings.HasPrefix(got, "False Invalid spec.addresses[1]: ") || !strings.Contains(got, "The last good configuration stays in use") {
		t.Errorf("Ready: %s", got)
	}

	for range 2 { // leaders
		o.lead()
		writes := o.writes
		if err := o.specs.apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.ledger.Adopt([]v1.Service{*held})
		o.process()
		if o.writes != writes {
			t.Errorf("the next leader wrote %d times", o.writes-writes)
		}
		ccmtest.Expect(t, o.assign(held), "203.0.113.4 from pool web, Allocated")
		ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("more")), "203.0.113.5 from pool web, Allocated")
		if err := o.ledger.Release(t.Context(), servicerecord.KeyOf(ccmtest.ServiceFor("more")), ccmtest.ServiceFor("more").UID); err != nil {
			t.Fatal(err)
		}
	}

	o.edit("203.0.113.4/31", "203.0.113.9")
	obj = o.process()
	ccmtest.Expect(t, obj.Status.LastGood, "")
	ccmtest.Expect(t, o.ready(obj), "True Ready The pool is in use")
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
			o := newOffice(t, obj)
			o.process()
			held := ccmtest.ServiceFor("held", ccmtest.Shows("203.0.113.4"), ccmtest.Given("web"))
			o.ledger.Adopt([]v1.Service{*held})
			ccmtest.Expect(t, o.assign(held), "203.0.113.4 from pool web, Allocated")
			ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("new")), "nothing, NoPool")
			got := o.process()
			if ready := o.ready(got); !strings.Contains(ready, "Until then it assigns no addresses; Services keep the ones that they hold") {
				t.Errorf("Ready: %s", ready)
			}
			if got.Status.AssignedIPv4 != 1 || got.Status.AvailableIPv4 != 0 || got.Status.LastGood != "" {
				t.Errorf("status %+v", got.Status)
			}

			if err := o.client.Create(t.Context(), spare.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			o.process()
			ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("new")), "203.0.113.5 from pool spare, Allocated")
			ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("newer")), "nothing, PoolExhausted")
		})
	}
}

// TestLastGoodIsOfThisObject: the configuration is not used for another pool of the same name.
func TestLastGoodIsOfThisObject(t *testing.T) {
	o := newOffice(t, webPool("203.0.113.4/31"))
	o.process()
	o.ledger.Adopt(nil)
	if err := o.client.Delete(t.Context(), o.pool()); err != nil {
		t.Fatal(err)
	}
	again := webPool(unreadable...)
	again.UID = types.UID("2")
	if err := o.client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if obj := o.process(); obj.Status.LastGood != "" || obj.Status.AvailableIPv4 != 0 {
		t.Errorf("status %+v", obj.Status)
	}
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("new")), "nothing, NoPool")
}

// TestDeclinedRoom: the room passes to the next waiting Service.
func TestDeclinedRoom(t *testing.T) {
	o := newOffice(t, webPool("203.0.113.4"))
	o.process()
	o.ledger.Adopt(nil)
	holder := ccmtest.ServiceFor("holder")
	ccmtest.Expect(t, o.assign(holder), "203.0.113.4 from pool web, Allocated")
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("a")), "nothing, PoolExhausted")
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("b")), "nothing, PoolExhausted")
	if err := o.ledger.Release(t.Context(), servicerecord.KeyOf(holder), holder.UID); err != nil {
		t.Fatal(err)
	}
	o.ledger.Declined(servicerecord.KeyOf(ccmtest.ServiceFor("a")))
	if !slices.Equal(o.woken, []string{"a", "b"}) {
		t.Errorf("woken %v", o.woken)
	}
}
