package ccm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// reached adds addresses to the node, each "Type address".
func reached(at ...string) func(*v1.Node) {
	return func(n *v1.Node) {
		for _, a := range at {
			kind, address, _ := strings.Cut(a, " ")
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeAddressType(kind), Address: address})
		}
	}
}

func TestNodeAddresses(t *testing.T) {
	n := node("n", reached("Hostname 203.0.113.1", "InternalIP 203.0.113.2", "InternalIP 2001:db8::2", "ExternalIP ::ffff:203.0.113.3",
		"InternalDNS n.example", "ExternalIP n.example", "InternalIP fe80::1%eth0"))
	if got := fmt.Sprint(nodeAddresses(n)); got != "[203.0.113.2 2001:db8::2 203.0.113.3 fe80::1]" {
		t.Errorf("got %s", got)
	}
}

// TestAddressOfNode: a Service never gets an address of a node. It keeps one if the node comes later, and waits for one
// until the node is removed.
func TestAddressOfNode(t *testing.T) {
	o := newOffice(t, webPool("203.0.113.4/31"))
	o.process()
	o.ledger.adopt(nil)
	h := o.ledger.nodeHandler()
	first := node("first", reached("InternalIP 203.0.113.4"))
	h.OnAdd(first, true)
	expect(t, o.assign(serviceFor("a")), "203.0.113.5 from pool web, Allocated")
	asks := serviceFor("b")
	asks.Spec.LoadBalancerIP = "203.0.113.4"
	expect(t, o.assign(asks), "nothing, AddressOfNode")
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
	o.ledger.poolsChanged = func() { changes++ }
	heartbeat := first.DeepCopy()
	heartbeat.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	if h.OnUpdate(first, heartbeat); changes > 0 || len(o.woken) > 0 {
		t.Errorf("a heartbeat changed something: %v", o.woken)
	}

	// A node that joins, or gets its address, later.
	bare := node("second")
	h.OnAdd(bare, false)
	h.OnUpdate(bare, node("second", reached("ExternalIP 203.0.113.5")))
	if !slices.Equal(o.woken, []string{"a"}) {
		t.Fatalf("woken %v", o.woken)
	}
	expect(t, o.assign(serviceFor("a")), "203.0.113.5 from pool web, Draining")
	if got := condition(); !strings.Contains(got, "203.0.113.5 (node second, still held by default/a)") {
		t.Errorf("NodeAddresses: %s", got)
	}

	o.woken = nil
	h.OnDelete(heartbeat)
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "second"})
	if !slices.Equal(o.woken, []string{"b", "a"}) {
		t.Errorf("woken %v", o.woken)
	}
	expect(t, o.assign(asks), "203.0.113.4 from pool web, Allocated")
	expect(t, o.assign(serviceFor("a")), "203.0.113.5 from pool web, Allocated")
	if got := condition(); got != "False " {
		t.Errorf("NodeAddresses: %s", got)
	}
}
