package allocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// cutOnce drops the response to the next patch of a Service. applied: the patch itself is applied.
func (f *fixture) cutOnce(applied bool) {
	done := false
	through := k8stesting.ObjectReaction(f.Api.Tracker())
	f.Api.PrependReactor("patch", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if done {
			return false, nil, nil
		}
		done = true
		if applied {
			if _, _, err := through(a); err != nil {
				return true, nil, err
			}
		}
		return true, nil, errCut
	})
}

// TestPublishedAfterALostResponse: an outcome whose write may have been applied is published once, when it is certain,
// whatever the cache shows by then.
func TestPublishedAfterALostResponse(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for _, caught := range []bool{false, true} { // the cache shows the write by the second try
			for outcome, event := range map[string]string{"served": "Normal Allocated", "waits": "Warning PoolExhausted", "moved": "Normal Allocated", "legacy": ""} {
				t.Run(fmt.Sprint(outcome, applied, caught), func(t *testing.T) {
					f := newFixture(t, "203.0.113.4/32")
					f.Adopt()
					s := ccmtest.ServiceFor("s")
					switch outcome {
					case "waits":
						f.Ensure(ccmtest.ServiceFor("first", func(s *v1.Service) { s.UID = "first" }))
					case "moved": // it waits, as published before
						first := ccmtest.ServiceFor("first", func(s *v1.Service) { s.UID = "first" })
						f.Ensure(first)
						f.Ensure(s)
						if err := f.Ledger.Release(t.Context(), servicerecord.KeyOf(first), first.UID); err != nil {
							t.Fatal(err)
						}
					case "legacy": // it had the address before it had a condition: unchanged
						ccmtest.Shows("203.0.113.4")(s)
						ccmtest.Given("web")(s)
					}
					if _, err := f.Api.Tracker().Get(servicesResource, "default", "s"); err != nil {
						if err := f.Api.Tracker().Add(s.DeepCopy()); err != nil {
							t.Fatal(err)
						}
					}
					f.eventTexts()
					f.cutOnce(applied)
					if _, err := f.Lb.EnsureLoadBalancer(t.Context(), "", s, nil); !errors.Is(err, errCut) {
						t.Fatalf("got %v", err)
					}
					f.expectEvents()
					if caught {
						obj, err := f.Api.Tracker().Get(servicesResource, "default", "s")
						if err != nil {
							t.Fatal(err)
						}
						s = obj.(*v1.Service).DeepCopy()
						if s.Annotations == nil {
							s.Annotations = map[string]string{}
						}
					}
					f.Ensure(s)
					f.Ensure(s)
					if event == "" {
						f.expectEvents()
					} else {
						f.expectEvents(event)
					}
				})
			}
		}
	}
}

// TestWritesOfOneThatWaits: a waiting Service costs two writes to it and two Events in total, however often it is
// retried meanwhile. With its VirtualIP that is five (docs/design/ccm-pending.md).
func TestWritesOfOneThatWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api, events := startServices(ctx, t, 1, ccmtest.Node("n"))
	services := api.CoreV1().Services("default")
	patch := func(name, change string) {
		t.Helper()
		if _, err := services.Patch(ctx, name, types.MergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ccmtest.Create(t, services, ccmtest.ServiceFor("first"))
	awaitEvent(t, events, "Normal Allocated")
	api.ClearActions()
	ccmtest.Create(t, services, ccmtest.ServiceFor("s"))
	awaitEvent(t, events, "Warning PoolExhausted default/s")
	// Each label triggers a retry. The Service created after it proves that: the only worker processes them in order.
	for _, value := range []string{"a", "b"} {
		patch("s", fmt.Sprintf(`{"metadata":{"labels":{"tried":%q}}}`, value))
		ccmtest.Create(t, services, ccmtest.ServiceFor("after-"+value))
		awaitEvent(t, events, "Warning PoolExhausted default/after-"+value)
	}
	for _, name := range []string{"after-a", "after-b"} {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch("first", `{"spec":{"type":"ClusterIP"}}`)
	awaitEvent(t, events, "Normal Allocated")
	var got []string
	for _, w := range writes(api) {
		if strings.HasSuffix(w, " s") {
			got = append(got, w)
		}
	}
	slices.Sort(got)
	byTest := []string{"create services s", "patch services s", "patch services s"}
	want := slices.Concat(byTest, []string{"patch services/status s", "patch services/status s"})
	if !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	if len(events.Events) > 0 {
		t.Errorf("unexpected Event: %q", <-events.Events)
	}
	served := func(all map[string]v1.Service) bool { return ccmtest.IP(all["s"]) == "203.0.113.4" }
	all := await(t, services, "s has the address", served)
	if s := all["s"]; !slices.Equal(s.Finalizers, []string{"service.kubernetes.io/load-balancer-cleanup"}) {
		t.Errorf("it has finalizers %v", s.Finalizers)
	}
}

// TestFinalizerIsInTheOutcome: both are in one patch. The finalizer is IronLB's with a class, else the service
// controller's. A removed finalizer is restored.
func TestFinalizerIsInTheOutcome(t *testing.T) {
	for class, want := range map[string]string{"": "service.kubernetes.io/load-balancer-cleanup", "ironlb.io/lb": "ironlb.io/load-balancer"} {
		f := newFixture(t, "203.0.113.4/32")
		f.Adopt()
		s := ccmtest.ServiceFor("s", func(s *v1.Service) {
			s.Finalizers = []string{"example.com/other"}
			if class != "" {
				s.Spec.LoadBalancerClass = &class
			}
		})
		f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
		if !slices.Equal(s.Finalizers, []string{"example.com/other", want}) && !slices.Equal(s.Finalizers, []string{want, "example.com/other"}) {
			t.Errorf("got %v, want %s too", s.Finalizers, want)
		}
		s.Finalizers = []string{"example.com/other"}
		if !f.Lb.Registrar.diverged(s) {
			t.Errorf("%s: its finalizer is missing and not restored", want)
		}
		if err := f.Api.Tracker().Update(servicesResource, s.DeepCopy(), "default"); err != nil {
			t.Fatal(err)
		}
		f.Expect(f.Ensure(s), "1 writes, 203.0.113.4 Proxy, Allocated")
		if !servicerecord.HasFinalizer(s, want) {
			t.Errorf("got %v", s.Finalizers)
		}
	}
}

// TestDeletedMeanwhile: a Service whose deletion is not in the cache yet gets no finalizer and nothing else, without an
// error.
func TestDeletedMeanwhile(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	f.Adopt()
	f.Api.PrependReactor("patch", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "s", field.ErrorList{
			field.Forbidden(field.NewPath("metadata", "finalizers"), "no new finalizers can be added if the object is being deleted"),
		})
	})
	f.Expect(f.Ensure(ccmtest.ServiceFor("s")), "1 writes")
	f.expectEvents()
	if holders := f.Ledger.alloc.Holders(ccmtest.Address("203.0.113.4", "").Addr); len(holders) > 0 {
		t.Errorf("held by %v", holders)
	}
}

// TestStatusIsPatched: the addresses are in the order of the families, with an explicit mode. The patch has no other
// fields, so that another writer's conditions and annotations stay.
func TestStatusIsPatched(t *testing.T) {
	f := newFixture(t, "203.0.113.4/32")
	r, err := pools.ParseRanges([]string{"203.0.113.4", "2001:db8::4"})
	if err != nil {
		t.Fatal(err)
	}
	f.Ledger.SetPools([]pools.Pool{{Name: "web", Ranges: r, AutoAssign: true}})
	f.Adopt()
	s := ccmtest.ServiceFor("s", ccmtest.Annotate("example.com/a", "1"), func(s *v1.Service) {
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
		policy := v1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy = &policy
		s.Status.Conditions = []metav1.Condition{{Type: "example.com/Other", Status: metav1.ConditionTrue, Reason: "Theirs"}}
	})
	f.Expect(f.Ensure(s), "1 writes, 2001:db8::4 Proxy, 203.0.113.4 Proxy, Allocated, Theirs")
	patch := f.Api.Actions()[0].(k8stesting.PatchAction)
	if patch.GetPatchType() != "application/strategic-merge-patch+json" || patch.GetSubresource() != "status" || strings.Contains(string(patch.GetPatch()), "spec") {
		t.Errorf("wrote %s %s %s", patch.GetPatchType(), patch.GetSubresource(), patch.GetPatch())
	}
	if s.Annotations["example.com/a"] != "1" || s.Annotations[v1alpha1.AnnotationAllocatedFrom] != "web,web" {
		t.Errorf("annotations are %v", s.Annotations)
	}
	for range 5 { // the order is stable: no further write
		f.Expect(f.Ensure(s), "0 writes, 2001:db8::4 Proxy, 203.0.113.4 Proxy, Allocated, Theirs")
	}
}
