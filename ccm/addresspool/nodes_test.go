package addresspool

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/ccm/ccmtest"
)

// TestAddressOfNode: a Service never gets an address of a node. It keeps one if the node comes later, and waits for one
// until the node is removed.
func TestAddressOfNode(t *testing.T) {
	o := newOffice(t, webPool("203.0.113.4/31"))
	o.process()
	o.ledger.Adopt(nil)
	h := o.ledger.NodeHandler()
	first := ccmtest.Node("first", ccmtest.Reached("InternalIP 203.0.113.4"))
	h.OnAdd(first, true)
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Allocated")
	asks := ccmtest.ServiceFor("b")
	asks.Spec.LoadBalancerIP = "203.0.113.4"
	ccmtest.Expect(t, o.assign(asks), "nothing, AddressOfNode")
	condition := func() string {
		o.t.Helper()
		for _, c := range o.process().Status.Conditions {
			if c.Type == conditionNodes {
				return string(c.Status) + " " + c.Message
			}
		}
		return "none"
	}
	if got := condition(); !strings.Contains(got, "203.0.113.4 (node first)") {
		t.Errorf("NodeAddresses: %s", got)
	}

	// A heartbeat has no effect.
	changes := 0
	o.ledger.PoolsChanged = func() { changes++ }
	heartbeat := first.DeepCopy()
	heartbeat.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	if h.OnUpdate(first, heartbeat); changes > 0 || len(o.woken) > 0 {
		t.Errorf("a heartbeat changed something: %v", o.woken)
	}

	// A node that joins, or gets its address, later.
	bare := ccmtest.Node("second")
	h.OnAdd(bare, false)
	h.OnUpdate(bare, ccmtest.Node("second", ccmtest.Reached("ExternalIP 203.0.113.5")))
	if !slices.Equal(o.woken, []string{"a"}) {
		t.Fatalf("woken %v", o.woken)
	}
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Draining")
	if got := condition(); !strings.Contains(got, "203.0.113.5 (node second, still held by default/a)") {
		t.Errorf("NodeAddresses: %s", got)
	}

	o.woken = nil
	h.OnDelete(heartbeat)
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "second"})
	if !slices.Equal(o.woken, []string{"b", "a"}) {
		t.Errorf("woken %v", o.woken)
	}
	ccmtest.Expect(t, o.assign(asks), "203.0.113.4 from pool web, Allocated")
	ccmtest.Expect(t, o.assign(ccmtest.ServiceFor("a")), "203.0.113.5 from pool web, Allocated")
	if got := condition(); got != "False " {
		t.Errorf("NodeAddresses: %s", got)
	}
}
