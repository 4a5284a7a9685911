package returnroute_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/returnroute"
)

// node is a namespace with a driver.
type node struct {
	*netspace.Space
	driver *returnroute.Driver
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Space: netspace.New(t)}
	bridge := netspace.NewBridge(t)
	n.Plug(t, "eth0", bridge, "management", addrs(func(f family) (string, int) { return f.management(0), f.netBits })...)
	n.Plug(t, "eth1", bridge, "service", addrs(func(f family) (string, int) { return f.service(0), f.netBits })...)
	for _, f := range families {
		n.Route(t, f.everywhere, f.managementGateway)
	}
	n.restart(t)
	return n
}

// restart opens a new driver.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.Must(t, func() (err error) {
		n.driver, err = newDriver(t)
		return err
	})
}

func (n *node) apply(want []ipvs.ReturnRoute) (done []ipvs.ReturnRoute, err error) {
	err = n.Do(func() (err error) {
		done, err = n.driver.Apply(context.Background(), want)
		return err
	})
	return done, err
}

func (n *node) mustApply(t *testing.T, want []ipvs.ReturnRoute) {
	t.Helper()
	if done, err := n.apply(want); err != nil || len(done) != len(want) {
		t.Fatalf("applied %v, error %v, want %v", done, err, want)
	}
}

func (n *node) check(t *testing.T) (intact bool) {
	t.Helper()
	n.Must(t, func() (err error) {
		intact, err = n.driver.Check(context.Background())
		return err
	})
	return intact
}

// run runs commands in the namespace and returns their output.
func (n *node) run(t *testing.T, commands ...string) string {
	t.Helper()
	var text strings.Builder
	for _, command := range commands {
		n.Must(t, func() error {
			words := strings.Fields(command)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			text.Write(out)
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return nil
		})
	}
	return text.String()
}

// state is everything that the driver may change, line by line in the order of the text: the kernel lists rules of one
// priority and tables by their age.
func (n *node) state(t *testing.T) string {
	t.Helper()
	text := n.run(t, "ip -4 rule", "ip -6 rule", "ip -4 route show table all", "ip -6 route show table all", "nft list ruleset")
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// What the driver makes is as documented, survives a restart of the process, and is removed without a trace, with
// other programs' rules, routes and tables left alone.
func TestRemove(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.run(t, "ip rule add priority 900 from 192.0.2.7 lookup 99", "ip rule add priority 1073 fwmark 7 lookup 99",
		"ip route add 192.0.2.128/25 dev eth0 table 99", "ip -6 rule add priority 1075 from 2001:db8::7 lookup 99")
	before := n.state(t)
	n.mustApply(t, wanted())
	made := n.state(t)
	for _, want := range []string{
		"1073:\tfrom all fwmark 0x49524c01 lookup 7301 proto 73\n",
		"1074:\tfrom 192.0.2.96/28 lookup main suppress_prefixlength 0 proto 73\n",
		"1075:\tfrom 192.0.2.96/28 lookup 7301 proto 73\n",
		"1075:\tfrom 2001:db8:1::100/120 lookup 7301 proto 73\n",
		"default via 192.0.2.254 dev eth1 table 7301 proto 73 \n",
		"192.0.2.0/24 dev eth1 table 7301 proto 73 scope link \n",
		"default via 2001:db8:1::fe dev eth1 table 7301 proto 73 metric 1024 pref medium\n",
	} {
		if !strings.Contains(made, want) {
			t.Errorf("%q is missing in\n%s", want, made)
		}
	}
	n.restart(t)
	n.mustApply(t, wanted())
	if again := n.state(t); again != made {
		t.Errorf("after a restart:\n%s\nwant:\n%s", again, made)
	}
	n.restart(t)
	n.Must(t, func() error { return n.driver.Remove(context.Background()) })
	if after := n.state(t); after != before {
		t.Errorf("left:\n%s\nwant:\n%s", after, before)
	}
}

// A change by another program during Apply is detected, and repaired by the next one.
func TestChangeDuringApply(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{
		"ip rule del priority 1074", "ip -6 rule del priority 1075", "ip route flush table 7301", "nft flush table ip ironlb-return",
	} {
		n := newNode(t)
		transactions := 0
		n.driver.AfterTransaction(func() {
			if transactions++; transactions == len(families) {
				if out, err := exec.Command("sh", "-c", harm).CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", harm, err, out)
				}
			}
		})
		done, err := n.apply(wanted())
		if len(done) == len(families) && !strings.HasPrefix(harm, "nft") {
			t.Errorf("%s during Apply: all return routes count as in effect", harm)
		}
		if n.check(t) {
			t.Errorf("%s during Apply, which returned %v: everything is intact", harm, err)
		}
		n.mustApply(t, wanted())
		if !n.check(t) {
			t.Errorf("%s, and another Apply: not intact", harm)
		}
		got := n.state(t)
		n.restart(t)
		if n.mustApply(t, wanted()); n.state(t) != got {
			t.Errorf("%s, and another Apply:\n%s, want\n%s", harm, got, n.state(t))
		}
	}
}

// A change by another program is found and repaired.
func TestRepair(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustApply(t, wanted())
	want := n.state(t)
	for _, harm := range []string{
		"ip rule del priority 1073", "ip -6 rule del priority 1075", "ip rule flush table 7301", "ip route flush table 7301",
		"ip -6 route del default table 7301", "nft delete table ip ironlb-return", "nft flush chain ip6 ironlb-return prerouting",
		"ip link set eth1 down",
	} {
		if !n.check(t) {
			t.Fatalf("before %q: not intact", harm)
		}
		n.run(t, harm)
		if n.check(t) {
			t.Errorf("%q is not found", harm)
		}
		if strings.HasSuffix(harm, "down") { // the kernel also deletes the addresses of IPv6
			n.run(t, "ip link set eth1 up", "ip -6 addr replace 2001:db8:1::1/64 dev eth1 nodad")
		}
		n.mustApply(t, wanted())
		if got := n.state(t); got != want && !strings.HasSuffix(harm, "down") {
			t.Errorf("after %q:\n%s\nwant:\n%s", harm, got, want)
		}
	}
	n.run(t, "ip route replace default via 192.0.2.9 dev eth1 table 7301")
	if n.check(t) {
		t.Error("a route of another program in our table is not found")
	}
	n.mustApply(t, wanted())
	if got := n.state(t); !strings.Contains(got, "default via 192.0.2.254 dev eth1 table 7302") || !strings.Contains(got, "via 192.0.2.9 dev eth1 table 7301") {
		t.Errorf("the table is not left to the other program:\n%s", got)
	}
}

// A change of the gateway moves the addresses to another table at once, and back. Prefixes change in place.
func TestChange(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustApply(t, wanted())
	before := n.state(t)
	other := wanted()
	other[0].Gateway = netip.MustParseAddr("192.0.2.253")
	other[1].Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::200/120"), netip.MustParsePrefix("2001:db8:1::300/120")}
	n.mustApply(t, other)
	text := n.state(t)
	if strings.Contains(text, "192.0.2.254") || strings.Contains(text, "table 7301 proto 73 scope link") || !strings.Contains(text, "default via 192.0.2.253 dev eth1 table 7302") {
		t.Errorf("after a change of the gateway:\n%s", text)
	}
	if strings.Contains(text, "2001:db8:1::100/120") || !strings.Contains(text, "from 2001:db8:1::300/120 lookup 7301") {
		t.Errorf("after a change of the prefixes:\n%s", text)
	}
	n.mustApply(t, wanted())
	if after := n.state(t); after != before {
		t.Errorf("changed back:\n%s\nwant:\n%s", after, before)
	}
}

// Two pools with different gateways have a table each. One whose interface is missing does not hold up the other.
func TestSeveral(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	want := wanted()[:1]
	want = append(want, ipvs.ReturnRoute{
		Gateway: netip.MustParseAddr("10.0.0.253"), Interface: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")},
	})
	n.mustApply(t, want)
	done, err := n.apply(append([]ipvs.ReturnRoute{{
		Gateway: netip.MustParseAddr("172.16.0.1"), Interface: "eth7", Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.16/28")},
	}}, want...))
	if err == nil || !strings.Contains(err.Error(), "eth7") || len(done) != 2 {
		t.Errorf("applied %v, error %v, want two routes and an error about eth7", done, err)
	}
	if n.check(t) {
		t.Error("intact after an error")
	}
	if text := n.state(t); !strings.Contains(text, "from 203.0.113.0/28 lookup 7302") {
		t.Errorf("the second route is missing:\n%s", text)
	}
}

// A table with routes of another program is left to it. A rule of another program that precedes ours is named, and the
// route is not in effect.
func TestForeign(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.run(t, "ip route add 198.18.0.0/24 dev eth0 table 7301", "ip rule add priority 500 from 198.18.0.1 lookup 7302")
	n.mustApply(t, wanted()[:1])
	if text := n.state(t); !strings.Contains(text, "fwmark 0x49524c03 lookup 7303") {
		t.Errorf("other tables are in use:\n%s", text)
	}
	n.run(t, "ip route add default via 10.0.0.9 table 88", "ip rule add priority 600 lookup 88")
	if n.check(t) {
		t.Fatal("the other rule is not found")
	}
	done, err := n.apply(wanted()[:1])
	if len(done) != 0 || err == nil || !strings.Contains(err.Error(), "600 lookup 88") {
		t.Errorf("applied %v, error %v, want one that names rule 600", done, err)
	}
	n.run(t, "ip rule del priority 600")
	n.mustApply(t, wanted()[:1])
}

// A strict reverse path filter of the interface becomes loose.
func TestReversePathFilter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ all, eth1, want string }{{"1", "0", "2"}, {"0", "1", "2"}, {"0", "0", "0"}, {"2", "1", "1"}} {
		n := newNode(t)
		n.Sysctl(t, "net.ipv4.conf.all.rp_filter", c.all)
		n.Sysctl(t, "net.ipv4.conf.eth1.rp_filter", c.eth1)
		n.mustApply(t, wanted())
		n.Must(t, func() error {
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth1/rp_filter")
			if text := strings.TrimSpace(string(got)); err == nil && text != c.want {
				t.Errorf("with all=%s and eth1=%s, eth1 becomes %s, want %s", c.all, c.eth1, text, c.want)
			}
			return err
		})
		if c.want == "2" {
			n.Sysctl(t, "net.ipv4.conf.eth1.rp_filter", "1")
			if c.all != "2" && n.check(t) {
				t.Error("intact with a strict filter")
			}
		}
	}
}

// Removing nothing needs no route and no table.
func TestNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	before := n.state(t)
	n.Must(t, func() error { return n.driver.Remove(context.Background()) })
	n.mustApply(t, nil)
	if after := n.state(t); after != before {
		t.Errorf("changed to:\n%s", after)
	}
	if link, err := n.Handle.LinkByName("eth1"); err != nil || link.Type() != (&netlink.Veth{}).Type() {
		t.Errorf("interface %v, error %v", link, err)
	}
}
