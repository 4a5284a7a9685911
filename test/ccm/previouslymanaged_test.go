package ccm

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/test/eventually"
)

// TestOnlyClassLater starts ironlb-ccm with --only-class after it has served Services without a class. These keep their
// addresses without a write, and no other Service gets them. Each can be deleted, made ClusterIP or taken over by
// another controller.
func TestOnlyClassLater(t *testing.T) {
	f := use(t, "previous")
	f.pool("previous", "2001:db8:1::/126")
	before := f.start(alone)
	old := []string{"a", "b", "c", "d"}
	for _, name := range old {
		f.create(name, nil)
		eventually.True(f, patience, name+" is served", func() bool {
			return len(ingress(f.get(name))) == 1 && slices.Equal(f.get(name).Finalizers, []string{cleanup})
		})
	}
	f.create("waits", nil)
	f.becomes("waits", "PoolExhausted")
	f.stop(before)
	never := f.create("never", nil)
	f.patch("never", types.MergePatchType, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, cleanup), "")
	versions := map[string]string{}
	had := map[string]netip.Addr{}
	for _, name := range old {
		versions[name], had[name] = f.get(name).ResourceVersion, ingress(f.get(name))[0]
	}

	after := f.start(alone, "--only-class")
	heir := func(of string) {
		t.Helper()
		f.create("heir-of-"+of, ptr.To("ironlb.io/lb"))
		eventually.True(f, patience, "the heir of "+of+" is served", func() bool { return slices.Contains(ingress(f.get("heir-of-"+of)), had[of]) })
	}
	f.create("heir-of-a", ptr.To("ironlb.io/lb"))
	f.becomes("heir-of-a", "PoolExhausted")
	for _, name := range old {
		if v := f.get(name).ResourceVersion; v != versions[name] {
			t.Errorf("%s was written to", name)
		}
	}
	f.end("a")
	eventually.True(f, patience, "the heir of a is served", func() bool { return slices.Contains(ingress(f.get("heir-of-a")), had["a"]) })

	f.patch("b", types.MergePatchType, `{"spec":{"type":"ClusterIP","allocateLoadBalancerNodePorts":null}}`, "")
	eventually.True(f, patience, "b is clean", func() bool { return f.clean("b") && len(f.get("b").Finalizers) == 0 })
	heir("b")

	f.patch("c", types.MergePatchType, `{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.9"}]}}}`, "status")
	eventually.True(f, patience, "our record is off c", func() bool { return f.clean("c") })
	if c := f.get("c"); !slices.Equal(c.Finalizers, []string{cleanup}) || ingress(c)[0] != netip.MustParseAddr("198.51.100.9") {
		t.Errorf("c is another controller's and has %v, %v", c.Finalizers, ingress(c))
	}
	heir("c")

	f.end("waits")
	f.delete("never")
	f.end("d")
	if n := f.get("never"); n == nil || n.UID != never.UID || !slices.Equal(n.Finalizers, []string{cleanup}) {
		t.Errorf("one that never was ours was touched: %v", n)
	}
	heir("d")
	f.stop(after)
}
