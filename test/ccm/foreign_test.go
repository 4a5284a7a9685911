package ccm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestTheirs: with all controllers running, ironlb-ccm writes nothing to another controller's Service and no Events
// about it. This holds for Services of all shapes, existing at the start or created later, while they change and when
// they end.
func TestTheirs(t *testing.T) {
	for _, flag := range []string{"--only-class=false", "--only-class"} {
		t.Run(flag, func(t *testing.T) { testTheirs(t, flag) })
	}
}

func testTheirs(t *testing.T, flag string) {
	f := use(t, "theirs")
	ctx := f.ctx
	f.must(f.AddNodes(ctx, 2))
	f.advertised("ours", "2001:db8:1::/124")
	other := ptr.To("example.com/lb")
	shapes := map[string]struct {
		class      *string
		ingress    string
		finalizers []string
	}{
		"plain":     {nil, `{"ip":"2001:db8:9::9"}`, nil},
		"cleanup":   {nil, `{"ip":"2001:db8:9::10","ipMode":"VIP"}`, []string{cleanup}},
		"host-name": {nil, `{"hostname":"lb.example.com"}`, []string{cleanup, "example.com/f"}},
		"class":     {other, `{"ip":"2001:db8:9::11"}`, []string{cleanup}},
		"waiting":   {other, ``, []string{cleanup}},
		"ends":      {nil, `{"ip":"2001:db8:9::12"}`, []string{cleanup, "example.com/f"}},
		"ends-too":  {other, `{"ip":"2001:db8:9::13"}`, []string{cleanup, "example.com/f"}},
	}
	versions := map[string]string{}
	build := func(prefix string) {
		t.Helper()
		for shape, s := range shapes {
			name := prefix + shape
			f.create(name, s.class)
			if len(s.finalizers) > 0 {
				f.patch(name, types.MergePatchType, fmt.Sprintf(`{"metadata":{"finalizers":["%s"]}}`, strings.Join(s.finalizers, `","`)), "")
			}
			if s.ingress != "" {
				f.patch(name, types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[`+s.ingress+`]}}}`, "status")
			}
			if strings.HasPrefix(shape, "ends") {
				f.delete(name)
			}
			versions[name] = f.get(name).ResourceVersion
		}
	}
	build("early-")
	f.start(alone, "--service-proxy", flag)

	// An address of the pool that another controller's Service shows is not assigned.
	f.create("shown", other)
	f.patch("shown", types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[{"ip":"2001:db8:1::"}]}}}`, "status")
	versions["shown"] = f.get("shown").ResourceVersion

	ours := ptr.To("ironlb.io/lb")
	settle := func(name string) netip.Addr {
		t.Helper()
		f.create(name, ours)
		return f.served(name)
	}
	if got := settle("first").String(); got != "2001:db8:1::1" {
		t.Errorf("first has %s", got)
	}
	// Changes by its user or its controller cause no write either.
	for shape := range shapes {
		name := "early-" + shape
		if strings.HasPrefix(shape, "ends") {
			continue
		}
		f.patch(name, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}},"spec":{"selector":{"app":"x"},"loadBalancerSourceRanges":["192.0.2.0/24"]}}`, "")
		versions[name] = f.get(name).ResourceVersion
	}
	settle("second")
	f.must(f.AddNode(ctx, "node3"))
	settle("third")
	for name, version := range versions {
		svc := f.get(name)
		if svc == nil {
			t.Errorf("%s is gone: its finalizers were taken off", name)
			continue
		}
		if svc.ResourceVersion != version {
			t.Errorf("%s was written: %v %+v %v", name, svc.Finalizers, svc.Status, svc.Annotations)
		}
	}
	events, err := f.Kube.CoreV1().Events(f.namespace).List(ctx, metav1.ListOptions{})
	f.must(err)
	for _, e := range events.Items {
		if _, theirs := versions[e.InvolvedObject.Name]; theirs && e.Source.Component == "ironlb-ccm" {
			t.Errorf("Event about %s: %s %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	// Once a pool has the address, ironlb-ccm serves the Service.
	if flag == "--only-class" {
		return
	}
	f.pool("theirs", "2001:db8:9::9/128")
	eventually.True(f, patience, "the plain one is ours", func() bool {
		svc := f.get("early-plain")
		return f.reason("early-plain") == "Allocated" && slices.Contains(svc.Finalizers, cleanup)
	})
}
