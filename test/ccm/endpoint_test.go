package ccm

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestRefusedEndpoint: an endpoint in an EndpointSlice of its author, or of the controller that mirrors Endpoints, is
// the LoadBalancer address of another Service. A Warning Event and the condition report it, also when the address is
// allocated last. The condition ends with its cause, and a restart of ironlb-ccm repeats neither.
func TestRefusedEndpoint(t *testing.T) {
	f := use(t, "endpoint")
	ctx := f.ctx
	f.must(f.AddNodes(ctx, 1))
	f.advertised("p", "2001:db8:1::/124")
	ccm := f.start(alone)
	serve := func(name, want string) {
		t.Helper()
		f.create(name, nil)
		if got := f.served(name).String(); got != want {
			t.Fatalf("%s has %s", name, got)
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
		all, err := f.Kube.CoreV1().Events(f.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=EndpointRefused,type=Warning,involvedObject.name=" + name})
		f.must(err)
		for _, e := range all.Items {
			n += int(e.Count)
		}
		return n
	}
	serve("alias", "2001:db8:1::")
	serve("mirrored", "2001:db8:1::1")
	slice := func(name, service, labels string) {
		t.Helper()
		f.apply(fmt.Sprintf(`
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: endpoint, labels: {kubernetes.io/service-name: %s%s}},
  addressType: IPv6, endpoints: [{addresses: ["2001:db8:1::2"]}], ports: [{name: http, port: 80}]}
`, name, service, labels))
	}
	slice("mirrored-1", "mirrored", ", endpointslice.kubernetes.io/managed-by: endpointslicemirroring-controller.k8s.io")
	serve("web", "2001:db8:1::2")
	const text = "connections to endpoint 2001:db8:1::2 are refused: it is the LoadBalancer address of Service endpoint/web. " +
		"Replace it with the addresses of that Service's Pods"
	warned("mirrored", text)
	slice("manual", "alias", "")
	warned("alias", "EndpointSlice manual: "+text)
	eventually.True(f, patience, "Events", func() bool { return events("alias") == 1 && events("mirrored") == 1 })

	f.stop(ccm)
	versions := []string{f.get("alias").ResourceVersion, f.get("mirrored").ResourceVersion}
	f.start(alone)
	f.create("last", nil)
	f.served("last")
	if is := []string{f.get("alias").ResourceVersion, f.get("mirrored").ResourceVersion}; is[0] != versions[0] || is[1] != versions[1] {
		t.Error("a restart writes the condition again")
	}
	f.must(f.Kube.DiscoveryV1().EndpointSlices(f.namespace).Delete(ctx, "manual", metav1.DeleteOptions{}))
	warned("alias", "")
	f.delete("web")
	warned("mirrored", "")
	if a, m := events("alias"), events("mirrored"); a != 1 || m != 1 {
		t.Errorf("%d and %d Events, want one each", a, m)
	}
}
