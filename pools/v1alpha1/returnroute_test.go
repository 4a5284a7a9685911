package v1alpha1

import (
	"strings"
	"testing"
)

func TestParseReturnRoutes(t *testing.T) {
	for _, tt := range []struct {
		routes []ReturnRoute
		want   string // part of the error, empty for none
	}{
		{nil, ""},
		{[]ReturnRoute{{Gateway: "192.0.2.1"}, {Gateway: "2001:db8::1", Interface: "eth1.100"}, {Gateway: "fe80::1", Interface: "bond0"}}, ""},
		{[]ReturnRoute{{Gateway: "192.0.2.1"}, {Gateway: "192.0.2.1", Interface: "eth1"}}, ""},
		{[]ReturnRoute{{Gateway: "192.0.2.1"}, {Gateway: "192.0.2.1"}}, "returnRoutes[1] is the same as an earlier one: list it once"},
		{[]ReturnRoute{{Gateway: "router"}}, `returnRoutes[0].gateway: "router" is no IP address: write`},
		{[]ReturnRoute{{Gateway: "192.0.2.0/24"}}, "is no IP address"},
		{[]ReturnRoute{{Gateway: "fe80::1%eth0", Interface: "eth0"}}, "is no IP address"},
		{[]ReturnRoute{{Gateway: "::ffff:192.0.2.1"}}, "is no IP address"},
		{[]ReturnRoute{{Gateway: "fe80::1"}}, "returnRoutes[0]: the gateway fe80::1 is link-local, which every interface may have: write interface, too"},
		{[]ReturnRoute{{Gateway: "169.254.1.1", Interface: "eth0"}}, "is no address that a router has"},
		{[]ReturnRoute{{Gateway: "224.0.0.1"}}, "is no address that a router has"},
		{[]ReturnRoute{{Gateway: "0.0.0.0"}}, "is no address that a router has"},
		{[]ReturnRoute{{Gateway: "127.0.0.1"}}, "is no address that a router has"},
		{[]ReturnRoute{{Gateway: "192.0.2.1", Interface: "lo"}}, `returnRoutes[0].interface: "lo" is not the name`},
		{[]ReturnRoute{{Gateway: "192.0.2.1", Interface: "a b"}}, "is not the name"},
		{[]ReturnRoute{{Gateway: "192.0.2.1", Interface: "sixteencharacters"}}, "is not the name"},
		{make([]ReturnRoute, 17), "returnRoutes has 17 entries: write at most 16"},
	} {
		pool := &IPAddressPool{Spec: IPAddressPoolSpec{Addresses: []string{"192.0.2.96/28"}, ReturnRoutes: tt.routes}}
		_, err := ParsePool(pool)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "spec.returnRoutes")) {
			t.Errorf("%v: error %v, want %q", tt.routes, err, tt.want)
		}
	}
}
