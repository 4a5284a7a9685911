package ccm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestKept: a sharing Service whose port starts to conflict, or that becomes Local, keeps its address and has a Warning
// that names the other Service. A status wiped while ironlb-ccm was stopped has its addresses again, before a waiting
// Service gets them. PreferDualStack has only the second family until a pool has the first. An Event names the other
// family of a request for one address.
func TestKept(t *testing.T) {
	f := use(t, "kept")
	ctx := f.ctx
	message := func(name, kind, text string) {
		t.Helper()
		eventually.True(f, patience, fmt.Sprintf("a %s Event about %s with %q", kind, name, text), func() bool {
			events, err := f.Kube.CoreV1().Events(f.namespace).List(ctx, metav1.ListOptions{})
			f.must(err)
			return slices.ContainsFunc(events.Items, func(e v1.Event) bool {
				return e.InvolvedObject.Name == name && e.Type == kind && strings.Contains(e.Message, text)
			})
		})
		c := meta.FindStatusCondition(f.get(name).Status.Conditions, v1alpha1.ConditionAllocated)
		if !strings.Contains(c.Message, text) {
			t.Errorf("condition of %s: got %q", name, c.Message)
		}
	}
	create := func(name string, port int32, key string, change func(*v1.Service)) {
		t.Helper()
		svc := rig.Service(f.namespace, name, nil)
		svc.Annotations = map[string]string{annotationSharingKey: key}
		svc.Spec.Ports[0].Port, svc.Spec.Selector = port, map[string]string{"app": name}
		change(svc)
		_, err := f.services().Create(ctx, svc, metav1.CreateOptions{})
		f.must(err)
	}
	same := func(*v1.Service) {}
	dual := func(s *v1.Service) {
		s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
		s.Spec.IPFamilyPolicy = ptr.To(v1.IPFamilyPolicyPreferDualStack)
	}

	f.pool("web", "2001:db8:1::/126")
	first := f.start(alone)
	create("a", 80, "k", same)
	f.becomes("a", "Allocated", "2001:db8:1::")
	create("b", 81, "k", same)
	f.becomes("b", "Allocated", "2001:db8:1::")
	f.patch("b", types.JSONPatchType, `[{"op":"replace","path":"/spec/ports/0/port","value":80}]`, "")
	f.becomes("b", "SharingRefused", "2001:db8:1::")
	message("b", "Warning", "kept/a holds 2001:db8:1:: and has port TCP/80 as well")
	f.patch("b", types.JSONPatchType, `[{"op":"replace","path":"/spec/ports/0/port","value":81}]`, "")
	f.becomes("b", "Allocated", "2001:db8:1::")
	f.patch("b", types.MergePatchType, `{"spec":{"externalTrafficPolicy":"Local"}}`, "")
	f.becomes("b", "SharingRefused", "2001:db8:1::")
	message("b", "Warning", "kept/a holds 2001:db8:1:: and has another spec.selector, "+
		"while kept/b has externalTrafficPolicy Local")
	f.becomes("a", "Allocated", "2001:db8:1::")

	create("dual", 80, "", dual)
	f.becomes("dual", "SecondFamilyPending", "2001:db8:1::1")
	create("wiped", 80, "", same)
	f.becomes("wiped", "Allocated", "2001:db8:1::2")
	create("full", 80, "", same)
	f.becomes("full", "Allocated", "2001:db8:1::3")
	create("waits", 80, "", same)
	f.becomes("waits", "PoolExhausted")
	f.stop(first)
	for _, name := range []string{"dual", "wiped"} {
		f.patch(name, types.MergePatchType, `{"status":{"loadBalancer":null}}`, "status")
		if got := ingress(f.get(name)); len(got) > 0 {
			t.Fatalf("%s still shows %v", name, got)
		}
	}
	second := f.start(alone)
	f.becomes("wiped", "Allocated", "2001:db8:1::2")
	f.becomes("dual", "SecondFamilyPending", "2001:db8:1::1")
	f.becomes("waits", "PoolExhausted")
	f.pool("four", "192.0.2.0/30")
	f.becomes("dual", "Allocated", "192.0.2.0", "2001:db8:1::1")

	f.pool("more", "2001:db8:2::/126")
	f.becomes("waits", "Allocated", "2001:db8:2::")
	create("named", 80, "", func(s *v1.Service) {
		dual(s)
		s.Annotations[v1alpha1.AnnotationAddresses] = "2001:db8:2::3"
	})
	f.becomes("named", "Allocated", "192.0.2.1", "2001:db8:2::3")
	message("named", "Normal", "Its request names no IPv4 address")
	f.stop(second)
}
