package scene

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/test/lab"
)

var (
	// both reports whether Services are of both families.
	both bool
	// pairs are the twins of IPv6 that Pair named.
	pairs = map[netip.Addr]netip.Addr{}
)

// Pair makes two addresses of a Service twins until the test ends, after which another Service may get the one without
// the other: what is asked of the one of IPv4 is asked of the other, too.
func Pair(t testing.TB, four, six string) {
	t.Helper()
	addr, twin := At(t, four, 0).Addr(), At(t, six, 0).Addr()
	if pairs[addr] == twin {
		return // until the test ends that made them twins
	}
	pairs[addr] = twin
	t.Cleanup(func() { delete(pairs, addr) })
}

// IPv4Only has what f asks be asked of the addresses that it names alone.
func IPv4Only(f func()) {
	defer func(before bool) { both = before }(both)
	both = false
	f()
}

// Each is the address and port, and that of its twin.
func Each(to netip.AddrPort) (all []netip.AddrPort) {
	for _, addr := range withTwin(to.Addr()) {
		all = append(all, netip.AddrPortFrom(addr, to.Port()))
	}
	return all
}

// withTwin is the address and, where Services are of both families, its twin, if it has one.
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
