package ccm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestRefusedEndpoint: an endpoint in an EndpointSlice of its author, or of the controller that mirrors Endpoints, is
// the LoadBalancer address of another Service. A Warning Event and the condition report it, also when the address is
// allocated last. The condition ends with its cause, and a restart of ironlb-ccm repeats neither.
func TestRefusedEndpoint(t *testing.T) {
	const namespace = "endpoint"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := unmanagedCCM{T: t, Rig: rig.Start(t, rig.Config{}), ctx: ctx, namespace: namespace}
	f.must(f.AddNodes(ctx, 1))
	f.must(f.Apply(ctx, `
apiVersion: ironlb.io/v1alpha1
kind: IPAddressPool
metadata: {name: p}
spec: {addresses: ["2001:db8:1::/124"]}
---
apiVersion: ironlb.io/v1alpha1
kind: L2Advertisement
metadata: {name: p}
spec: {}
`))
	f.must(f.Namespace(ctx, namespace))
	ccm, err := f.StartCCM(ctx, firstPort, "--leader-elect=false")
	f.must(err)
	f.must(ccm.WaitReady(ctx, time.Minute))
	web := func() {
		t.Helper()
		f.create("web", nil)
		eventually.True(f, patience, "web is served", func() bool { return len(ingress(f.get("web"))) == 1 })
		if got := ingress(f.get("web"))[0].String(); got != "2001:db8:1::2" {
			t.Fatalf("web has %s", got)
		}
	}
	// warned waits until the condition has the text, or none of this warning if it is empty.
	warned := func(name, text string) {
		t.Helper()
		eventually.True(f, patience, fmt.Sprintf("warning of %s: %q", name, text), func() bool {
			c := meta.FindStatusCondition(f.get(name).Status.Conditions, "ironlb.io/Warnings")
			if text == "" {
				return c == nil || !strings.Contains(c.Message, "connections to endpoint")
			}
			return c != nil && strings.Contains(c.Message, text)
		})
	}
	events := func(name string) (n int) {
		t.Helper()
		all, err := f.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=EndpointRefused,type=Warning,involvedObject.name=" + name})
		f.must(err)
		for _, e := range all.Items {
			n += int(e.Count)
		}
		return n
	}
	for i, name := range []string{"alias", "mirrored"} {
		f.create(name, nil)
		eventually.True(f, patience, name+" is served", func() bool { return len(ingress(f.get(name))) == 1 })
		if got, want := ingress(f.get(name))[0].String(), []string{"2001:db8:1::", "2001:db8:1::1"}[i]; got != want {
			t.Fatalf("%s has %s", name, got)
		}
	}
	slice := func(name, service, labels string) {
		t.Helper()
		f.must(f.Apply(ctx, fmt.Sprintf(`
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: endpoint, labels: {kubernetes.io/service-name: %s%s}},
  addressType: IPv6, endpoints: [{addresses: ["2001:db8:1::2"]}], ports: [{name: http, port: 80}]}
`, name, service, labels)))
	}
	slice("mirrored-1", "mirrored", ", endpointslice.kubernetes.io/managed-by: endpointslicemirroring-controller.k8s.io")
	web()
	const text = "connections to endpoint 2001:db8:1::2 are refused: it is the LoadBalancer address of Service endpoint/web. " +
		"Replace it with the addresses of that Service's Pods"
	warned("mirrored", text)
	slice("manual", "alias", "")
	warned("alias", "EndpointSlice manual: "+text)
	eventually.True(f, patience, "Events", func() bool { return events("alias") == 1 && events("mirrored") == 1 })

	f.must(ccm.Stop(10 * time.Second))
	versions := []string{f.get("alias").ResourceVersion, f.get("mirrored").ResourceVersion}
	ccm, err = f.StartCCM(ctx, firstPort, "--leader-elect=false")
	f.must(err)
	f.must(ccm.WaitReady(ctx, time.Minute))
	f.create("last", nil)
	eventually.True(f, patience, "last is served", func() bool { return len(ingress(f.get("last"))) == 1 })
	if is := []string{f.get("alias").ResourceVersion, f.get("mirrored").ResourceVersion}; is[0] != versions[0] || is[1] != versions[1] {
		t.Error("a restart writes the condition again")
	}
	f.must(f.Kube.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, "manual", metav1.DeleteOptions{}))
	warned("alias", "")
	f.must(f.services().Delete(ctx, "web", metav1.DeleteOptions{}))
	warned("mirrored", "")
	if a, m := events("alias"), events("mirrored"); a != 1 || m != 1 {
		t.Errorf("%d and %d Events, want one each", a, m)
	}
}
