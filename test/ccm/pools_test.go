package ccm

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestPools: an address of a node is not assigned while the node exists; a pool that becomes invalid keeps its last
// valid state, also after a change of leader; and the Lease is released.
func TestPools(t *testing.T) {
	f := use(t, "pools")
	ctx := f.ctx
	pool := func(what string, is func(*v1alpha1.IPAddressPool) bool) {
		t.Helper()
		eventually.Nil(t, patience, "pool web: "+what, func(context.Context) error {
			var obj v1alpha1.IPAddressPool
			f.read("ipaddresspools/web", &obj)
			return eventually.Unless(is(&obj), "it is %+v", obj.Status)
		})
	}
	message := func(kind, text string) func(*v1alpha1.IPAddressPool) bool {
		return func(obj *v1alpha1.IPAddressPool) bool {
			c := meta.FindStatusCondition(obj.Status.Conditions, kind)
			return c != nil && strings.Contains(string(c.Status)+" "+c.Message, text)
		}
	}

	f.must(f.AddNodes(ctx, 2))
	nodes := f.Kube.CoreV1().Nodes()
	_, err := nodes.Patch(ctx, "node1", types.StrategicMergePatchType,
		[]byte(`{"status": {"addresses": [{"type": "InternalIP", "address": "2001:db8:1::4"}]}}`), metav1.PatchOptions{}, "status")
	f.must(err)
	f.pool("web", "2001:db8:1::4/127")
	first := f.start()

	f.create("s1", nil)
	f.becomes("s1", "Allocated", "2001:db8:1::5")
	f.create("s2", nil)
	f.becomes("s2", "PoolExhausted")
	pool("an address of a node", message("Withheld", "True Not allocated: 2001:db8:1::4 (is an address of Node node1)"))
	f.must(nodes.Delete(ctx, "node1", metav1.DeleteOptions{}))
	f.becomes("s2", "Allocated", "2001:db8:1::4")
	pool("no address of a node", message("Withheld", "False"))

	f.pool("web", "2001:db8:1::4/126")
	pool("readable", func(obj *v1alpha1.IPAddressPool) bool { return obj.Status.AvailableIPv6 == 2 })
	f.pool("web", "2001:db8:1::10-2001:db8:1::20", "2001:db8:1::18-2001:db8:1::28") // not covered by the CRD's rules
	pool("unreadable", message("Ready", "The last good configuration stays in use"))
	held := f.get("s1").ResourceVersion + " " + f.get("s2").ResourceVersion
	f.stop(first)
	lease, err := f.Kube.CoordinationV1().Leases("ironlb-system").Get(ctx, "ironlb-ccm", metav1.GetOptions{})
	f.must(err)
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != "" {
		t.Errorf("the Lease is still held at the end: %v", lease.Spec)
	}

	second := f.start()
	f.create("s3", nil)
	f.becomes("s3", "Allocated", "2001:db8:1::6")
	pool("unreadable for the next leader", func(obj *v1alpha1.IPAddressPool) bool {
		return message("Ready", "False")(obj) && obj.Status.AssignedIPv6 == 3 && obj.Status.AvailableIPv6 == 1
	})
	if now := f.get("s1").ResourceVersion + " " + f.get("s2").ResourceVersion; now != held {
		t.Error("the next leader wrote to Services of a pool that cannot be read")
	}
	f.pool("web", "2001:db8:1::4/126", "2001:db8:1::18-2001:db8:1::28")
	pool("corrected", func(obj *v1alpha1.IPAddressPool) bool {
		return message("Ready", "True")(obj) && obj.Status.LastGood == ""
	})
	f.stop(second)
}
