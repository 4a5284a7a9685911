package scene

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
)

var (
	// both is set if Services are of both families.
	both bool
	// pairs are the IPv6 twins set by Pair.
	pairs = map[netip.Addr]netip.Addr{}
)

// Pair makes two addresses of a Service twins until the test ends: checks of the IPv4 address are repeated for the
// other. Afterwards another Service may get one without the other.
func Pair(t testing.TB, four, six string) {
	t.Helper()
	addr, twin := At(t, four, 0).Addr(), At(t, six, 0).Addr()
	if pairs[addr] == twin {
		return // until the end of the test that paired them
	}
	pairs[addr] = twin
	t.Cleanup(func() { delete(pairs, addr) })
}

// IPv4Only restricts the checks in f to the named addresses, without twins.
func IPv4Only(f func()) {
	defer func(before bool) { both = before }(both)
	both = false
	f()
}

// Each returns the address and port, and its twin's.
func Each(to netip.AddrPort) (all []netip.AddrPort) {
	for _, addr := range withTwin(to.Addr()) {
		all = append(all, netip.AddrPortFrom(addr, to.Port()))
	}
	return all
}

// withTwin returns the address and, with Services of both families, its twin, if any.
func withTwin(addr netip.Addr) []netip.Addr {
	if !both {
		return []netip.Addr{addr}
	}
	if twin, ok := pairs[addr]; ok {
		return []netip.Addr{addr, twin}
	}
	machines := []*lab.Machine{cluster.Client, cluster.Router}
	for _, n := range cluster.Nodes {
		machines = append(machines, &n.Machine)
	}
	for name := range podNodes {
		if m, err := cluster.PodMachine(metav1.NamespaceDefault, name); err == nil {
			machines = append(machines, m)
		}
	}
	for _, m := range machines {
		if m.Addr == addr && m.Addr6.IsValid() {
			return []netip.Addr{addr, m.Addr6}
		}
	}
	return []netip.Addr{addr}
}
