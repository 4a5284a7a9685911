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

// shop is a desk with both controllers. Its API server counts versions and refuses a patch of an older one.
type shop struct {
	*Desk
	classes *classController
	version int
	late    func() // happens once, between the sending of the next patch and its arrival
}

func newShop(t *testing.T, addresses string) *shop {
	s := &shop{Desk: NewDesk(t, addresses, ccmtest.ServiceFor("unrelated"))}
	r := s.Lb.Registrar
	r.api = shopAPI{r.api, s}
	s.classes = newClassController(r, nil, 1)
	return s
}

type shopAPI struct {
	corev1.ServicesGetter
	shop *shop
}

func (a shopAPI) Services(namespace string) corev1.ServiceInterface {
	return shopServices{a.ServicesGetter.Services(namespace), a.shop}
}

type shopServices struct {
	corev1.ServiceInterface
	shop *shop
}

func (s shopServices) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*v1.Service, error) {
	if late := s.shop.late; late != nil {
		s.shop.late = nil
		late()
	}
	var given struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(data, &given); err != nil {
		return nil, err
	}
	switch have := s.shop.get(name); {
	case have == nil:
		return nil, apierrors.NewNotFound(v1.Resource("services"), name)
	case given.Metadata.ResourceVersion != "" && given.Metadata.ResourceVersion != have.ResourceVersion:
		return nil, apierrors.NewConflict(v1.Resource("services"), name, errors.New("the object has been modified"))
	}
	if _, err := s.ServiceInterface.Patch(ctx, name, pt, data, o, sub...); err != nil {
		return nil, err
	}
	return s.shop.change(name), nil
}

// get returns the Service from the API server, nil if there is none of that name.
func (s *shop) get(name string) *v1.Service {
	obj, err := s.Api.Tracker().Get(servicesResource, "default", name)
	if err != nil {
		return nil
	}
	return obj.(*v1.Service).DeepCopy()
}

// create stores a Service with a version and returns it.
func (s *shop) create(name string, change ...func(*v1.Service)) *v1.Service {
	uid := func(svc *v1.Service) { svc.UID = types.UID("uid of " + name) }
	svc := ccmtest.ServiceFor(name, append([]func(*v1.Service){uid}, change...)...)
	if err := s.Api.Tracker().Add(svc); err != nil {
		s.t.Fatal(err)
	}
	return s.change(name)
}

// change gives the Service its next version and returns it.
func (s *shop) change(name string, how ...func(*v1.Service)) *v1.Service {
	svc := s.get(name)
	for _, f := range how {
		f(svc)
	}
	s.version++
	svc.ResourceVersion = strconv.Itoa(s.version)
	if err := s.Api.Tracker().Update(servicesResource, svc.DeepCopy(), "default"); err != nil {
		s.t.Fatal(err)
	}
	return svc
}

// sync makes the controller of the Service serve it or clean it up. The given object is what the cache has.
func (s *shop) sync(svc *v1.Service) {
	s.t.Helper()
	var err error
	switch {
	case defaults.Classless(svc):
		s.serve(svc)
	case servicerecord.HasFinalizer(svc, servicerecord.Finalizer) || defaults.Classed(svc):
		err = s.classes.sync(s.t.Context(), svc)
	default:
		err = s.Lb.EnsureLoadBalancerDeleted(s.t.Context(), "", svc)
	}
	if err != nil {
		s.t.Error(err)
	}
}

func (s *shop) serve(svc *v1.Service) {
	s.t.Helper()
	_, err := s.Lb.EnsureLoadBalancer(s.t.Context(), "", svc, nil)
	if !errors.Is(err, cloudprovider.ImplementedElsewhere) {
		s.t.Error(err)
	}
}

// shown expects the address on the Service, and in the ledger; empty: none.
func (s *shop) shown(name, want string) {
	s.t.Helper()
	svc := s.get(name)
	s.Expect(ccmtest.IP(*svc), want)
	lease, _, err := s.Ledger.lease(s.t.Context(), svc)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Expect(servicerecord.Described(lease), map[bool]string{true: "nothing", false: want + " from pool web"}[want == ""])
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
			s := newShop(t, "203.0.113.4/32")
			s.sync(s.create("s", ofClass(class[0])))
			s.shown("s", "203.0.113.4")
			s.late = func() { s.sync(s.change("s", ofClass(class[1]))) }
			s.sync(s.change("s", clusterIP))
			s.shown("s", "203.0.113.4")
			if s.late != nil {
				t.Error("nothing was cleared")
			}
			s.sync(s.create("t"))
			s.shown("t", "")
		})
	}
}

// TestServedTooLate: the same with a patch that assigns an address. The Service has requested and received another one
// meanwhile.
func TestServedTooLate(t *testing.T) {
	s := newShop(t, "203.0.113.4/31")
	s.late = func() {
		s.change("s", clusterIP)
		asks := ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")
		s.sync(s.change("s", ofClass(ptr.To(defaults.Class)), asks))
		s.sync(s.create("t"))
	}
	s.sync(s.create("s"))
	s.shown("s", "203.0.113.5")
	s.shown("t", "203.0.113.4")
}

// TestDecidedTooLate: a controller with a copy of the Service from before the other one served it must not decide by
// it. Otherwise the ledger would hold another address than the Service shows.
func TestDecidedTooLate(t *testing.T) {
	s := newShop(t, "203.0.113.4/31")
	old := s.create("s", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5"))
	s.change("s", clusterIP, func(svc *v1.Service) { delete(svc.Annotations, "ironlb.io/ips") })
	s.sync(s.change("s", ofClass(ptr.To(defaults.Class))))
	s.shown("s", "203.0.113.4")
	s.sync(old)
	s.shown("s", "203.0.113.4")
	s.sync(s.get("s"))
	s.sync(s.create("t"))
	s.shown("s", "203.0.113.4")
	s.shown("t", "203.0.113.5")
}

// TestClearedByNeitherController: the service controller hands a Service over to the class controller and removes its
// own finalizer. The Service stops being a load balancer before the class controller serves it. The record is still
// removed.
func TestClearedByNeitherController(t *testing.T) {
	s := newShop(t, "203.0.113.4/32")
	s.sync(s.create("s"))
	s.late = func() { s.change("s", ofClass(ptr.To(defaults.Class))) }
	s.sync(s.change("s", clusterIP))
	left := s.change("s", clusterIP, func(svc *v1.Service) { svc.Finalizers = nil })
	if !servicerecord.Recorded(left) || !s.classes.concerns(left) {
		t.Fatalf("recorded %v, of concern %v", servicerecord.Recorded(left), s.classes.concerns(left))
	}
	if err := s.classes.sync(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if left = s.get("s"); servicerecord.Recorded(left) || s.Ledger.hasEntry(left) {
		t.Errorf("residual: %+v, entry %v", left.Status, s.Ledger.hasEntry(left))
	}
}

// TestServedByADeadLeader: a patch sent by a killed process arrives after the next one has read all Services. The
// address that it assigned stays, unless another Service has it by then.
func TestServedByADeadLeader(t *testing.T) {
	arrives := func(svc *v1.Service) { ccmtest.Shows("203.0.113.5")(svc); ccmtest.Given("web")(svc) }
	s := newShop(t, "203.0.113.4/31")
	s.late = func() { s.change("s", arrives) }
	s.sync(s.create("s"))
	s.shown("s", "203.0.113.5")

	s = newShop(t, "203.0.113.4/31")
	s.sync(s.create("t", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")))
	s.late = func() { s.change("s", arrives) }
	s.sync(s.create("s"))
	s.shown("s", "203.0.113.4")
	s.shown("t", "203.0.113.5")
}

// TestReleasedTooLate: another controller takes a Service while IronLB is uninstalled. Its address stays.
func TestReleasedTooLate(t *testing.T) {
	s := newShop(t, "203.0.113.4/32")
	s.sync(s.create("s"))
	s.late = func() { s.change("s", taken) }
	r, api := install.Release{Log: slog.New(slog.DiscardHandler)}, s.Lb.Registrar.api
	release := func(now *v1.Service) error { return r.Service(t.Context(), api, now) }
	_, err := servicerecord.RetryOnConflict(t.Context(), api, s.get("s"), release)
	if err != nil {
		t.Fatal(err)
	}
	if svc := s.get("s"); ccmtest.IP(*svc) != ccmtest.Elsewhere || servicerecord.Recorded(svc) {
		t.Errorf("got %+v", svc.Status)
	}
}

// TestChangedMeanwhile: a change between a decision and its write is taken into account at once, not after a
// controller's back-off. A deleted Service is released.
func TestChangedMeanwhile(t *testing.T) {
	label := func(svc *v1.Service) { svc.Labels = map[string]string{"a": "b"} }
	held := func(svc *v1.Service) { svc.Finalizers = []string{"example.com/other"} }
	second := func(svc *v1.Service) { svc.UID = "2" }
	remove := func(s *shop) {
		if err := s.Api.Tracker().Delete(servicesResource, "default", "s"); err != nil {
			s.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		late func(s *shop)
		s, t string // what s has, and t, which is decided next
	}{
		"label":   {func(s *shop) { s.change("s", label) }, "203.0.113.4", "203.0.113.5"},
		"ask":     {func(s *shop) { s.change("s", ccmtest.Annotate("ironlb.io/ips", "203.0.113.5")) }, "203.0.113.5", "203.0.113.4"},
		"deleted": {remove, "gone", "203.0.113.4"},
		"ending":  {func(s *shop) { s.change("s", ccmtest.Deleted, held) }, "", "203.0.113.4"},
		"another": {func(s *shop) { remove(s); s.create("s", second) }, "", "203.0.113.4"},
		"plain":   {func(s *shop) { s.sync(s.change("s", clusterIP)) }, "", "203.0.113.4"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, "203.0.113.4/31")
			s.late = func() { c.late(s) }
			s.sync(s.create("s"))
			s.sync(s.create("t"))
			s.shown("t", c.t)
			if c.s != "gone" {
				s.shown("s", c.s)
			}
		})
	}
}
