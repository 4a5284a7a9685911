package returnroute

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/inetconf"
)

// A strict reverse path filter (rp_filter=1) drops requests of clients that the main table reaches by another
// interface: where nftables has translated the destination before the routing, the source rules do not match. So it
// becomes loose (2) on the interface of the route, as RFC 3704, 2.4, recommends for such nodes. It is not made strict
// again: whether it was is not recorded.

// strict reports whether the reverse path filter of an interface is strict: the maximum with that of all interfaces is
// in effect.
func strict(name string) bool {
	values := []string{read("all"), read(name)}
	slices.Sort(values)
	return values[1] == "1"
}

func read(name string) string {
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
	if err != nil {
		return "" // no IPv4, or the interface is gone
	}
	return strings.TrimSpace(string(value))
}

// loosen makes the reverse path filter of the interface of an IPv4 route loose if it is strict.
func loosen(r table, link netlink.Link) error {
	if !r.Gateway.Is4() || !strict(r.Interface) {
		return nil
	}
	if err := inetconf.Set(link, inetconf.RPFilter, 2); err != nil {
		return fmt.Errorf("set sysctl net.ipv4.conf.%s.rp_filter to 2: %w", r.Interface, err)
	}
	return nil
}
