package status

import (
	"testing"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

// TestMessageOfLocal: if no node has endpoints of each Service on an address, the status names the nodes that have
// some.
func TestMessageOfLocal(t *testing.T) {
	on := func(name string, nodes ...string) plan.LocalService {
		return plan.LocalService{Service: pools.ServiceKey{Namespace: "default", Name: name}, Nodes: nodes}
	}
	const policy = "externalTrafficPolicy is Local and none of its nodes that is alive has "
	for _, c := range []struct {
		local []plan.LocalService
		want  string
	}{
		{nil, policy + "an endpoint"},
		{[]plan.LocalService{on("web", "c")}, policy + "an endpoint: those of default/web are on c. " +
			"Let a Pod run on one of its nodes, or set the policy to Cluster"},
		{[]plan.LocalService{on("dns", "b"), on("web", "1", "2", "3", "4", "5", "6", "7")}, policy +
			"endpoints of each Service on the address: those of default/dns are on b, " +
			"those of default/web are on 1, 2, 3, 4, 5 and 2 more. " +
			"Let their Pods run on the same nodes, set the policy to Cluster, or give each its own address"},
	} {
		if got := message(plan.Decision{Reason: plan.NoLocalEndpoint, Local: c.local}); got != c.want {
			t.Errorf("%v: %q, want %q", c.local, got, c.want)
		}
	}
}
