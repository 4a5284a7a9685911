package member

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// probing probes a neighbor repeatedly until the wanted result comes. With "unknown", no result may come.
func probing(t *testing.T, a *netspace.Space, n Neighbor, want string) {
	t.Helper()
	var l *lister
	a.Must(t, func() (err error) { l, err = newLister(); return err })
	defer l.close()
	deadline := time.After(20 * time.Second)
	for rounds := 0; ; rounds++ {
		if _, err := l.list([]string{n.Iface}); err != nil {
			t.Fatal(err)
		}
		answered, silent, err := l.rounds.probe([]Neighbor{n}, l.indexes)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case want == "answers" && len(answered) == 1, want == "silent" && len(silent) == 1:
			return
		case want == "unknown" && len(answered)+len(silent) > 0:
			t.Fatalf("%v answered: %v; silent: %v", n, answered, silent)
		case want == "unknown" && rounds == 3:
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%v: not %q", n, want)
		case <-time.After(probeAfter):
		}
	}
}

// listed returns the entry of the neighbor table.
func listed(t *testing.T, a *netspace.Space, n Neighbor) netlink.Neigh {
	t.Helper()
	table, err := a.Handle.NeighList(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, have := range table {
		if have.IP.Equal(n.Addr.AsSlice()) {
			return have
		}
	}
	t.Fatalf("there is no entry of %v", n.Addr)
	return netlink.Neigh{}
}

// rules loads rules for nft in a namespace.
func rules(t *testing.T, space *netspace.Space, text string) {
	t.Helper()
	space.Must(t, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// The kernel probes which neighbors answer, in both families, although the neighbor's packet filter drops the
// speakers' port and all ICMP; entries set by an administrator stay.
func TestProbe(t *testing.T) {
	for _, addr := range []string{"192.0.2.2", "fe80::2", "2001:db8::2"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := netspace.New(t), netspace.New(t)
			netspace.Join(t, a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24")
			for _, prefix := range []string{"fe80::", "2001:db8::"} {
				a.Address(t, "eth0", prefix+"1/64")
				b.Address(t, "eth0", prefix+"2/64")
			}
			n := Neighbor{Iface: "eth0", Addr: netip.MustParseAddr(addr), MAC: [6]byte(b.MAC(t, "eth0"))}
			link, err := a.Handle.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			set := func(state int) {
				t.Helper()
				entry := netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Addr.AsSlice(), HardwareAddr: n.MAC[:], State: state}
				if err := a.Handle.NeighSet(&entry); err != nil {
					t.Fatal(err)
				}
			}
			rules(t, b, `table inet filter {
				chain in {
					type filter hook input priority 0; policy drop
					icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
				}
			}`)
			probing(t, a, n, "answers")
			// Managed, as Cilium sets it: the kernel maintains the entry.
			managed := netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Addr.AsSlice(), Flags: netlink.NTF_EXT_LEARNED,
				FlagsExt: netlink.NTF_EXT_MANAGED}
			if err := a.Handle.NeighSet(&managed); err != nil {
				t.Fatal(err)
			}
			probing(t, a, n, "answers")
			probing(t, a, n, "answers")
			if have := listed(t, a, n); have.Flags&netlink.NTF_EXT_LEARNED == 0 || have.FlagsExt&netlink.NTF_EXT_MANAGED == 0 {
				t.Errorf("the entry has lost its flags: %+v", have)
			}
			rules(t, b, `table netdev cut {
				chain in { type filter hook ingress device eth0 priority 0; policy drop; }
			}`)
			probing(t, a, n, "silent")
			set(unix.NUD_PERMANENT)
			probing(t, a, n, "unknown")
			if have := listed(t, a, n); have.State != unix.NUD_PERMANENT {
				t.Errorf("what was set is not there any more: %+v", have)
			}
			probing(t, a, Neighbor{Iface: "eth9", Addr: n.Addr, MAC: n.MAC}, "unknown")
		})
	}
}

// A silent neighbor with an unknown hardware address is silent in each round, although the kernel has given up.
func TestProbeUnknownAddress(t *testing.T) {
	t.Parallel()
	a, b := netspace.New(t), netspace.New(t)
	netspace.Join(t, a, "eth0", "192.0.2.1/24", b, "eth0", "192.0.2.2/24")
	var l *lister
	a.Must(t, func() (err error) { l, err = newLister(); return err })
	defer l.close()
	n := Neighbor{Iface: "eth0", Addr: netip.MustParseAddr("192.0.2.2")}
	if err := a.PingWithin(5*time.Second, "192.0.2.2"); err != nil { // to create an entry
		t.Fatal(err)
	}
	rules(t, b, `table netdev cut {
		chain in { type filter hook ingress device eth0 priority 0; policy drop; }
	}`)
	deadline, silences := time.After(30*time.Second), 0
	for silences < 2*maxUnanswered {
		if _, err := l.list([]string{"eth0"}); err != nil {
			t.Fatal(err)
		}
		_, silent, err := l.rounds.probe([]Neighbor{n}, l.indexes)
		if err != nil {
			t.Fatal(err)
		}
		silences += len(silent)
		select {
		case <-deadline:
			t.Fatalf("silent %d times: %+v", silences, listed(t, a, n))
		case <-time.After(probeAfter):
		}
	}
}
