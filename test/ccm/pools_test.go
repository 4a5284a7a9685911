package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/ccm/rig"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestPools: an address of a node is not assigned while the node exists; a pool that becomes invalid keeps its last
// valid state, also after a change of leader; and the Lease is released.
func TestPools(t *testing.T) {
	const namespace = "pools"
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r := rig.Start(t, rig.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	apply := func(addresses ...string) {
		t.Helper()
		list, err := json.Marshal(addresses)
		must(err)
		must(r.Apply(ctx, fmt.Sprintf("{apiVersion: ironlb.io/v1alpha1, kind: IPAddressPool, metadata: {name: web}, spec: {addresses: %s}}", list)))
	}
	services := r.Kube.CoreV1().Services(namespace)
	create := func(name string) {
		t.Helper()
		_, err := services.Create(ctx, rig.Service(namespace, name, nil), metav1.CreateOptions{})
		must(err)
	}
	service := func(name string) *v1.Service {
		t.Helper()
		svc, err := services.Get(ctx, name, metav1.GetOptions{})
		must(err)
		return svc
	}
	becomes := func(name, want string) {
		t.Helper()
		eventually.Nil(t, patience, fmt.Sprintf("Service %s to have %q", name, want), func(context.Context) error {
			svc, got := service(name), ""
			for _, in := range svc.Status.LoadBalancer.Ingress {
				got += in.IP + " "
			}
			if c := meta.FindStatusCondition(svc.Status.Conditions, "ironlb.io/Allocated"); c != nil {
				got += c.Reason
			}
			return eventually.Unless(got == want, "it has %q", got)
		})
	}
	pool := func(what string, is func(*v1alpha1.IPAddressPool) bool) {
		t.Helper()
		eventually.Nil(t, patience, "pool web: "+what, func(context.Context) error {
			data, err := r.Kube.Discovery().RESTClient().Get().AbsPath("/apis/ironlb.io/v1alpha1/ipaddresspools/web").DoRaw(ctx)
			must(err)
			var obj v1alpha1.IPAddressPool
			must(json.Unmarshal(data, &obj))
			return eventually.Unless(is(&obj), "it is %+v", obj.Status)
		})
	}
	message := func(kind, text string) func(*v1alpha1.IPAddressPool) bool {
		return func(obj *v1alpha1.IPAddressPool) bool {
			c := meta.FindStatusCondition(obj.Status.Conditions, kind)
			return c != nil && strings.Contains(string(c.Status)+" "+c.Message, text)
		}
	}
	start := func() *rig.CCM {
		t.Helper()
		c, err := r.StartCCM(ctx, firstPort)
		must(err)
		must(c.WaitReady(ctx, time.Minute))
		return c
	}

	must(r.Namespace(ctx, namespace))
	must(r.AddNodes(ctx, 2))
	nodes := r.Kube.CoreV1().Nodes()
	_, err := nodes.Patch(ctx, "node1", types.StrategicMergePatchType,
		[]byte(`{"status": {"addresses": [{"type": "InternalIP", "address": "2001:db8:1::4"}]}}`), metav1.PatchOptions{}, "status")
	must(err)
	apply("2001:db8:1::4/127")
	first := start()

	create("s1")
	becomes("s1", "2001:db8:1::5 Allocated")
	create("s2")
	becomes("s2", "PoolExhausted")
	pool("an address of a node", message("Withheld", "True Not allocated: 2001:db8:1::4 (is an address of Node node1)"))
	must(nodes.Delete(ctx, "node1", metav1.DeleteOptions{}))
	becomes("s2", "2001:db8:1::4 Allocated")
	pool("no address of a node", message("Withheld", "False"))

	apply("2001:db8:1::4/126")
	pool("readable", func(obj *v1alpha1.IPAddressPool) bool { return obj.Status.AvailableIPv6 == 2 })
	apply("2001:db8:1::10-2001:db8:1::20", "2001:db8:1::18-2001:db8:1::28") // not covered by the CRD's rules
	pool("unreadable", message("Ready", "The last good configuration stays in use"))
	held := service("s1").ResourceVersion + " " + service("s2").ResourceVersion
	must(first.Stop(10 * time.Second))
	lease, err := r.Kube.CoordinationV1().Leases("ironlb-system").Get(ctx, "ironlb-ccm", metav1.GetOptions{})
	must(err)
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != "" {
		t.Errorf("the Lease is still held at the end: %v", lease.Spec)
	}

	second := start()
	create("s3")
	becomes("s3", "2001:db8:1::6 Allocated")
	pool("unreadable for the next leader", func(obj *v1alpha1.IPAddressPool) bool {
		return message("Ready", "False")(obj) && obj.Status.AssignedIPv6 == 3 && obj.Status.AvailableIPv6 == 1
	})
	if now := service("s1").ResourceVersion + " " + service("s2").ResourceVersion; now != held {
		t.Error("the next leader wrote to Services of a pool that cannot be read")
	}
	apply("2001:db8:1::4/126", "2001:db8:1::18-2001:db8:1::28")
	pool("corrected", func(obj *v1alpha1.IPAddressPool) bool {
		return message("Ready", "True")(obj) && obj.Status.LastGood == ""
	})
	must(second.Stop(10 * time.Second))
}
