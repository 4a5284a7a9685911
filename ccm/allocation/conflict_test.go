package allocation

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/install"
	"github.com/ironlb/ironlb/ccm/servicerecord"
)

// conflictFixture is a fixture with both controllers. Its API server counts versions and refuses a patch of an older
// one.
type conflictFixture struct {
	*fixture
	classes *classController
	version int
	late    func() // happens once, between the sending of the next patch and its arrival
}

func newConflictFixture(t *testing.T, addresses string) *conflictFixture {
	f := &conflictFixture{fixture: newFixture(t, addresses, ccmtest.ServiceFor("unrelated"))}
	r := f.Lb.Registrar
	r.api = conflictAPI{r.api, f}
	f.classes = newClassController(r, nil, 1)
	return f
}

type conflictAPI struct {
	corev1.ServicesGetter
	f *conflictFixture
}

func (a conflictAPI) Services(namespace string) corev1.ServiceInterface {
	return conflictServices{a.ServicesGetter.Services(namespace), a.f}
}

type conflictServices struct {
	corev1.ServiceInterface
	f *conflictFixture
}

func (s conflictServices) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*v1.Service, error) {
	if late := s.f.late; late != nil {
		s.f.late = nil
		late()
	}
	var given struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(data, &given); err != nil {
		return nil, err
	}
	switch have := s.f.get(name); {
	case have == nil:
		return nil, apierrors.NewNotFound(v1.Resource("services"), name)
	case given.Metadata.ResourceVersion != "" && given.Metadata.ResourceVersion != have.ResourceVersion:
		return nil, apierrors.NewConflict(v1.Resource("services"), name, errors.New("the object has been modified"))
	}
	if _, err := s.ServiceInterface.Patch(ctx, name, pt, data, o, sub...); err != nil {
		return nil, err
	}
	return s.f.change(name), nil
}

// get returns the Service from the API server, nil if there is none of that name.
func (f *conflictFixture) get(name string) *v1.Service {
	obj, err := f.Api.Tracker().Get(servicesResource, "default", name)
	if err != nil {
		return nil
	}
	return obj.(*v1.Service).DeepCopy()
}

// create stores a Service with a version and returns it.
func (f *conflictFixture) create(name string, change ...func(*v1.Service)) *v1.Service {
	uid := func(svc *v1.Service) { svc.UID = types.UID("uid of " + name) }
	svc := ccmtest.ServiceFor(name, append([]func(*v1.Service){uid}, change...)...)
	if err := f.Api.Tracker().Add(svc); err != nil {
		f.t.Fatal(err)
	}
	return f.change(name)
}

// change gives the Service its next version and returns it.
func (f *conflictFixture) change(name string, how ...func(*v1.Service)) *v1.Service {
	svc := f.get(name)
	for _, edit := range how {
		edit(svc)
	}
	f.version++
	svc.ResourceVersion = strconv.Itoa(f.version)
	if err := f.Api.Tracker().Update(servicesResource, svc.DeepCopy(), "default"); err != nil {
		f.t.Fatal(err)
	}
	return svc
}

// sync makes the controller of the Service serve it or clean it up. The given object is what the cache has.
func (f *conflictFixture) sync(svc *v1.Service) {
	f.t.Helper()
	var err error
	switch {
	case defaults.Classless(svc):
		f.serve(svc)
	case servicerecord.HasFinalizer(svc, servicerecord.Finalizer) || defaults.Classed(svc):
		err = f.classes.sync(f.t.Context(), svc)
	default:
		err = f.Lb.EnsureLoadBalancerDeleted(f.t.Context(), "", svc)
	}
	if err != nil {
		f.t.Error(err)
	}
}

func (f *conflictFixture) serve(svc *v1.Service) {
	f.t.Helper()
	_, err := f.Lb.EnsureLoadBalancer(f.t.Context(), "", svc, nil)
	if !errors.Is(err, cloudprovider.ImplementedElsewhere) {
		f.t.Error(err)
	}
}

// shown expects the address on the Service, and in the ledger; empty: none.
func (f *conflictFixture) shown(name, want string) {
	f.t.Helper()
	svc := f.get(name)
	f.Expect(ccmtest.IP(*svc), want)
	lease, _, err := f.Ledger.lease(f.t.Context(), svc)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Expect(servicerecord.Described(lease), map[bool]string{true: "nothing", false: want + " from pool web"}[want == ""])
}

// ofClass sets the type of a Service as the user writes it. Fields that the API server clears with it are cleared.
func ofClass(class *string) func(*v1.Service) {
	return func(svc *v1.Service) { svc.Spec.Type, svc.Spec.LoadBalancerClass = v1.ServiceTypeLoadBalancer, class }
}

func clusterIP(svc *v1.Service) {
	svc.Spec.Type, svc.Spec.LoadBalancerClass = v1.ServiceTypeClusterIP, nil
	svc.Status.LoadBalancer = v1.LoadBalancerStatus{}
}

// TestClearedTooLate: a Service stops being a load balancer and becomes one again, with another class, before the patch
// that removes its address arrives. The patch must not remove what the other controller has assigned by then.
func TestClearedTooLate(t *testing.T) {
	ours := ptr.To(defaults.Class)
	for name, class := range map[string][2]*string{"class set": {nil, ours}, "class removed": {ours, nil}} {
		t.Run(name, func(t *testing.T) {
			f := newConflictFixture(t, "203.0.113.4/32")
			f.sync(f.create("s", ofClass(class[0])))
			f.shown("s", "203.0.113.4")
			f.late = func() { f.sync(f.change("s", ofClass(class[1]))) }
			f.sync(f.change("s", clusterIP))
			f.shown("s", "203.0.113.4")
			if f.late != nil {
				t.Error("nothing was cleared")
			}
			f.sync(f.create("t"))
			f.shown("t", "")
		})
	}
}

// TestServedTooLate: the same with a patch that assigns an address. The Service has requested and received another one
// meanwhile.
func TestServedTooLate(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/31")
	f.late = func() {
		f.change("s", clusterIP)
		asks := ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")
		f.sync(f.change("s", ofClass(ptr.To(defaults.Class)), asks))
		f.sync(f.create("t"))
	}
	f.sync(f.create("s"))
	f.shown("s", "203.0.113.5")
	f.shown("t", "203.0.113.4")
}

// TestDecidedTooLate: a controller with a copy of the Service from before the other one served it must not decide by
// it. Otherwise the ledger would hold another address than the Service shows.
func TestDecidedTooLate(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/31")
	old := f.create("s", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5"))
	f.change("s", clusterIP, func(svc *v1.Service) { delete(svc.Annotations, "ironlb.io/ips") })
	f.sync(f.change("s", ofClass(ptr.To(defaults.Class))))
	f.shown("s", "203.0.113.4")
	f.sync(old)
	f.shown("s", "203.0.113.4")
	f.sync(f.get("s"))
	f.sync(f.create("t"))
	f.shown("s", "203.0.113.4")
	f.shown("t", "203.0.113.5")
}

// TestClearedByNeitherController: the service controller hands a Service over to the class controller and removes its
// own finalizer. The Service stops being a load balancer before the class controller serves it. The record is still
// removed.
func TestClearedByNeitherController(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/32")
	f.sync(f.create("s"))
	f.late = func() { f.change("s", ofClass(ptr.To(defaults.Class))) }
	f.sync(f.change("s", clusterIP))
	left := f.change("s", clusterIP, func(svc *v1.Service) { svc.Finalizers = nil })
	if !servicerecord.Recorded(left) || !f.classes.concerns(left) {
		t.Fatalf("recorded %v, of concern %v", servicerecord.Recorded(left), f.classes.concerns(left))
	}
	if err := f.classes.sync(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if left = f.get("s"); servicerecord.Recorded(left) || f.Ledger.hasEntry(left) {
		t.Errorf("residual: %+v, entry %v", left.Status, f.Ledger.hasEntry(left))
	}
}

// TestServedByADeadLeader: a patch sent by a killed process arrives after the next one has read all Services. The
// address that it assigned stays, unless another Service has it by then.
func TestServedByADeadLeader(t *testing.T) {
	arrives := func(svc *v1.Service) { ccmtest.Shows("203.0.113.5")(svc); ccmtest.Given("web")(svc) }
	f := newConflictFixture(t, "203.0.113.4/31")
	f.late = func() { f.change("s", arrives) }
	f.sync(f.create("s"))
	f.shown("s", "203.0.113.5")

	f = newConflictFixture(t, "203.0.113.4/31")
	f.sync(f.create("t", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")))
	f.late = func() { f.change("s", arrives) }
	f.sync(f.create("s"))
	f.shown("s", "203.0.113.4")
	f.shown("t", "203.0.113.5")
}

// TestReleasedTooLate: another controller takes a Service while IronLB is uninstalled. Its address stays.
func TestReleasedTooLate(t *testing.T) {
	f := newConflictFixture(t, "203.0.113.4/32")
	f.sync(f.create("s"))
	f.late = func() { f.change("s", taken) }
	r, api := install.Release{Log: slog.New(slog.DiscardHandler)}, f.Lb.Registrar.api
	release := func(now *v1.Service) error { return r.Service(t.Context(), api, now) }
	_, err := servicerecord.RetryOnConflict(t.Context(), api, f.get("s"), release)
	if err != nil {
		t.Fatal(err)
	}
	if svc := f.get("s"); ccmtest.IP(*svc) != ccmtest.Elsewhere || servicerecord.Recorded(svc) {
		t.Errorf("got %+v", svc.Status)
	}
}

// TestChangedMeanwhile: a change between a decision and its write is taken into account at once, not after a
// controller's back-off. A deleted Service is released.
func TestChangedMeanwhile(t *testing.T) {
	label := func(svc *v1.Service) { svc.Labels = map[string]string{"a": "b"} }
	held := func(svc *v1.Service) { svc.Finalizers = []string{"example.com/other"} }
	second := func(svc *v1.Service) { svc.UID = "2" }
	remove := func(f *conflictFixture) {
		if err := f.Api.Tracker().Delete(servicesResource, "default", "s"); err != nil {
			f.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		late func(f *conflictFixture)
		s, t string // what s has, and t, which is decided next
	}{
		"label":   {func(f *conflictFixture) { f.change("s", label) }, "203.0.113.4", "203.0.113.5"},
		"ask":     {func(f *conflictFixture) { f.change("s", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")) }, "203.0.113.5", "203.0.113.4"},
		"deleted": {remove, "gone", "203.0.113.4"},
		"ending":  {func(f *conflictFixture) { f.change("s", ccmtest.Deleted, held) }, "", "203.0.113.4"},
		"another": {func(f *conflictFixture) { remove(f); f.create("s", second) }, "", "203.0.113.4"},
		"plain":   {func(f *conflictFixture) { f.sync(f.change("s", clusterIP)) }, "", "203.0.113.4"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newConflictFixture(t, "203.0.113.4/31")
			f.late = func() { c.late(f) }
			f.sync(f.create("s"))
			f.sync(f.create("t"))
			f.shown("t", c.t)
			if c.s != "gone" {
				f.shown("s", c.s)
			}
		})
	}
}
