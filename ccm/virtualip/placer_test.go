package virtualip

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// TestAdvertisementCondition: an error of an advertisement is set in its condition once, and cleared when it is fixed.
// A failed write does not delay placement, and is retried.
func TestAdvertisementCondition(t *testing.T) {
	sch := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(sch); err != nil {
		t.Fatal(err)
	}
	writes, refuse := 0, false
	cl := fake.NewClientBuilder().WithScheme(sch).WithStatusSubresource(&v1alpha1.L2Advertisement{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			writes++
			if refuse {
				return errors.New("refused")
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}).WithObjects(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}).Build()
	events := record.NewFakeRecorder(10)
	p := &Placer{log: slog.New(slog.DiscardHandler), client: cl, events: events}
	get := func() *v1alpha1.L2Advertisement {
		obj := &v1alpha1.L2Advertisement{}
		if err := cl.Get(t.Context(), client.ObjectKey{Name: "all"}, obj); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	fix := func(op metav1.LabelSelectorOperator) {
		obj := get()
		obj.Spec.NodeSelectors = []metav1.LabelSelector{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: op}}}}
		if err := cl.Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	of := policies{"lan": {ObjectMeta: metav1.ObjectMeta{Name: "lan", Labels: map[string]string{"net": "lan"}}}}
	// pass reads the advertisements and checks the number of writes and Events, and the resulting condition.
	pass := func(wantWrites, wantEvents int, want string) {
		t.Helper()
		writes = 0
		ads, err := p.advertisements(t.Context(), of)
		if err != nil || len(ads) != 1 {
			t.Fatalf("got %v, %v", ads, err)
		}
		if writes != wantWrites || len(events.Events) != wantEvents {
			t.Errorf("%d writes and %d Events, want %d and %d", writes, len(events.Events), wantWrites, wantEvents)
		}
		for len(events.Events) > 0 {
			<-events.Events
		}
		got := "nothing"
		if c := meta.FindStatusCondition(get().Status.Conditions, "Ready"); c != nil {
			got = string(c.Status) + " " + c.Reason
		}
		ccmtest.Expect(t, got, want)
	}

	pass(1, 0, "True Read")
	pass(0, 0, "True Read")
	fix("Like")
	p.conditioned["all"] = get().ResourceVersion // written, and not in the cache yet
	pass(0, 1, "True Read")
	clear(p.conditioned)
	refuse = true
	pass(1, 0, "True Read")
	pass(1, 0, "True Read")
	refuse = false
	pass(1, 0, "False InvalidSelector")
	pass(0, 0, "False InvalidSelector")
	fix(metav1.LabelSelectorOpExists)
	pass(1, 0, "True Read")
	pass(0, 0, "True Read")
	ask := func(change func(*v1alpha1.L2AdvertisementSpec)) {
		obj := get()
		change(&obj.Spec)
		if err := cl.Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	ask(func(s *v1alpha1.L2AdvertisementSpec) { s.IPAddressPools = []string{"lan", "lann"} })
	pass(1, 1, "False UnknownPool")
	pass(0, 0, "False UnknownPool")
	message := meta.FindStatusCondition(get().Status.Conditions, "Ready").Message
	ccmtest.Expect(t, message, "spec.ipAddressPools: there is no IPAddressPool lann: create it, or remove it from the list. The advertisement is in use for the other pools")
	of["lann"] = &v1alpha1.IPAddressPool{}
	pass(1, 0, "True Read")
	ask(func(s *v1alpha1.L2AdvertisementSpec) {
		s.IPAddressPools, s.IPAddressPoolSelectors = nil, []metav1.LabelSelector{{MatchLabels: map[string]string{"net": "wan"}}}
	})
	pass(1, 1, "False UnknownPool")
	delete(of, "lann")
	of["lan"].Labels["net"] = "wan"
	pass(1, 0, "True Read")
	ask(func(s *v1alpha1.L2AdvertisementSpec) {
		s.IPAddressPoolSelectors = append(s.IPAddressPoolSelectors, s.IPAddressPoolSelectors[0])
	})
	pass(1, 1, "False RepeatedSelector")
	message = meta.FindStatusCondition(get().Status.Conditions, "Ready").Message
	ccmtest.Expect(t, message, "spec.ipAddressPoolSelectors[1] is the same as [0]: remove one of them, or correct it. The advertisement is in use")
	ask(func(s *v1alpha1.L2AdvertisementSpec) { s.IPAddressPoolSelectors = s.IPAddressPoolSelectors[:1] })
	pass(1, 0, "True Read")
	ask(func(s *v1alpha1.L2AdvertisementSpec) { s.Interfaces = []string{"eth0", "eth9"} })
	pass(0, 0, "True Read") // no speaker has reported
	speaker := v1alpha1.SpeakerStatus{Status: v1alpha1.SpeakerStatusStatus{Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0"}, {Name: "eth1"}}}}
	p.attached = newAttached([]v1alpha1.SpeakerStatus{speaker})
	pass(0, 0, "True Read") // speakers may have to report it yet
	for key, since := range p.unknown {
		p.unknown[key] = since.Add(-unknownFor)
	}
	pass(1, 1, "False UnknownInterface")
	pass(0, 0, "False UnknownInterface")
	message = meta.FindStatusCondition(get().Status.Conditions, "Ready").Message
	ccmtest.Expect(t, message, "spec.interfaces: no node has eth9 up, or it is no Ethernet interface of its own; nodes have eth0, eth1: correct the name, or remove it")
	speaker.Status.Interfaces = append(speaker.Status.Interfaces, v1alpha1.InterfaceStatus{Name: "eth9"})
	p.attached = newAttached([]v1alpha1.SpeakerStatus{speaker})
	pass(1, 0, "True Read")
}
