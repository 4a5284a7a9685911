package watch

import (
	"fmt"
	"testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
)

func TestNodeAddresses(t *testing.T) {
	n := ccmtest.Node("n", ccmtest.Reached("Hostname 203.0.113.1", "InternalIP 203.0.113.2", "InternalIP 2001:db8::2", "ExternalIP ::ffff:203.0.113.3",
		"InternalDNS n.example", "ExternalIP n.example", "InternalIP fe80::1%eth0"))
	if got := fmt.Sprint(NodeAddresses(n)); got != "[203.0.113.2 2001:db8::2 203.0.113.3 fe80::1]" {
		t.Errorf("got %s", got)
	}
}
