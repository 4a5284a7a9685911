package status

import (
	"testing"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/ownership"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestMessageOfLocal: if no node has endpoints of each Service on an address, the status names the nodes that have
// some.
func TestMessageOfLocal(t *testing.T) {
	on := func(name string, nodes ...string) ownership.LocalPort {
		return ownership.LocalPort{Service: pools.ServiceKey{Namespace: "default", Name: name}, Nodes: nodes}
	}
	web := pools.ServiceKey{Namespace: "default", Name: "web"}
	const policy = "externalTrafficPolicy is Local and none of its nodes that is alive has "
	for _, c := range []struct {
		local []ownership.LocalPort
		want  string
	}{
		{nil, policy + "an endpoint"},
		{[]ownership.LocalPort{on("web", "c")}, policy + "an endpoint: those of default/web are on c. " +
			"Let a Pod run on one of its nodes, or set the policy to Cluster"},
		{[]ownership.LocalPort{on("dns", "b"), on("web", "1", "2", "3", "4", "5", "6", "7")}, policy +
			"endpoints of each Service, port and family on the address: those of default/dns are on b, " +
			"those of default/web are on 1, 2, 3, 4, 5 and 2 more. " +
			"Let their Pods run on the same nodes, set the policy to Cluster, or give each its own address"},
		{[]ownership.LocalPort{{Service: web, Port: "http", IPv4: true, Nodes: []string{"a"}}, {Service: web, Port: "http", Nodes: []string{"b"}}}, policy +
			"endpoints of each Service, port and family on the address: those of default/web (http IPv4) are on a, " +
			"those of default/web (http IPv6) are on b. " +
			"Let their Pods run on the same nodes, set the policy to Cluster, or give each its own address"},
	} {
		if got := message(ownership.Decision{Reason: view.NoLocalEndpoint, Local: c.local}); got != c.want {
			t.Errorf("%v: %q, want %q", c.local, got, c.want)
		}
	}
}
