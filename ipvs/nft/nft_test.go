package nft_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nft"
)

const vip = "203.0.113.4"

type (
	addrs = map[netip.Addr]struct{}
	keys  = map[ipvs.Key]struct{}
)

func key(protocol ipvs.Protocol, addr string, port uint16) ipvs.Key {
	return ipvs.Key{Addr: netip.MustParseAddr(addr), Protocol: protocol, Port: port}
}

// web is a Service with one TCP port at the virtual address.
func web() ipvs.Firewall {
	return ipvs.Firewall{
		Addrs:      addrs{netip.MustParseAddr(vip): {}},
		Served:     keys{key(ipvs.TCP, vip, 80): {}},
		Masquerade: keys{key(ipvs.TCP, vip, 80): {}},
	}
}

// node is a namespace with the firewall in it; every call is made inside.
type node struct {
	*netspace.Space
	firewall *nft.Firewall
}

func newNode(t *testing.T) node {
	t.Helper()
	n := node{Space: netspace.New(t)}
	n.open(t)
	return n
}

// open makes the firewall anew, as a restart does.
func (n *node) open(t *testing.T) {
	t.Helper()
	n.Must(t, func() (err error) {
		n.firewall, err = nft.New()
		return err
	})
}

func (n node) apply(t *testing.T, want ipvs.Firewall, changed int) {
	t.Helper()
	n.Must(t, func() error {
		got, err := n.firewall.Apply(context.Background(), want)
		if err == nil && got != changed {
			err = fmt.Errorf("Apply changed %d elements, want %d", got, changed)
		}
		return err
	})
}

func (n node) wantIntact(t *testing.T, want bool) {
	t.Helper()
	n.Must(t, func() error {
		intact, err := n.firewall.Check(context.Background())
		if err == nil && intact != want {
			err = fmt.Errorf("Check = %v, want %v", intact, want)
		}
		return err
	})
}

func (n node) wantListed(t *testing.T, want ipvs.Firewall) {
	t.Helper()
	n.Must(t, func() error {
		got, err := n.firewall.List(context.Background())
		if err == nil && !got.Equal(want) {
			err = fmt.Errorf("List = %v, want %v", got, want)
		}
		return err
	})
}

// nft runs the program nft as an operator does.
func (n node) nft(t *testing.T, args ...string) string {
	t.Helper()
	var out []byte
	n.Must(t, func() (err error) {
		if out, err = exec.Command("nft", args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("nft %v: %w: %s", args, err, out)
		}
		return err
	})
	return string(out)
}

// In a small image there is no /etc/protocols, and nft lists protocols by number.
func TestWithoutNamesOfProtocols(t *testing.T) {
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
exec unshare --mount sh -c '[ ! -e /etc/protocols ] || mount --bind /dev/null /etc/protocols && exec ` + real + ` "$@"' nft "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := newNode(t)
	n.apply(t, web(), 3)
	n.wantListed(t, web())
	n.wantIntact(t, true)
	if got := n.nft(t, "list", "table", "ip", nft.TableName); !strings.Contains(got, vip+" . 6 . 80") {
		t.Errorf("nft has names of protocols, this test proves nothing:\n%s", got)
	}
}

func TestContents(t *testing.T) {
	n := newNode(t)
	n.wantListed(t, ipvs.Firewall{})
	n.apply(t, web(), 3)
	n.wantListed(t, web())
	n.apply(t, web(), 0)
	before := n.nft(t, "-a", "-t", "list", "table", "ip", "ironlb")

	more := web()
	more.Addrs[netip.MustParseAddr("203.0.113.5")] = struct{}{}
	more.Served[key(ipvs.UDP, vip, 53)] = struct{}{}
	more.Served[key(ipvs.SCTP, "203.0.113.5", 2905)] = struct{}{}
	n.apply(t, more, 3)
	n.wantListed(t, more)
	delete(more.Served, key(ipvs.UDP, vip, 53))
	delete(more.Masquerade, key(ipvs.TCP, vip, 80))
	n.apply(t, more, 2)
	n.wantIntact(t, true)

	listed := n.nft(t, "list", "table", "ip", "ironlb")
	for _, text := range []string{"203.0.113.4 . tcp . 80", "203.0.113.5 . sctp . 2905"} {
		if strings.Count(listed, text) != 1 {
			t.Errorf("nft does not list %q once:\n%s", text, listed)
		}
	}
	if strings.Contains(listed, "udp . 53") {
		t.Errorf("nft still lists the deleted element:\n%s", listed)
	}
	if after := n.nft(t, "-a", "-t", "list", "table", "ip", "ironlb"); after != before {
		t.Errorf("more than elements changed, from\n%sto\n%s", before, after)
	}
}

func TestRefused(t *testing.T) {
	n := newNode(t)
	for _, f := range []ipvs.Firewall{
		{Addrs: addrs{netip.MustParseAddr("2001:db8::1"): {}}},
		{Served: keys{key(ipvs.TCP, "2001:db8::1", 80): {}}},
		{Masquerade: keys{key(ipvs.TCP, vip, 0): {}}},
		{Served: keys{key(47, vip, 80): {}}},
	} {
		err := n.Do(func() error {
			_, err := n.firewall.Apply(context.Background(), f)
			return err
		})
		if err == nil {
			t.Errorf("Apply(%v) succeeded", f)
		}
	}
}

func TestNoCommand(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := nft.New()
	if !errors.Is(err, nft.ErrNoCommand) || !strings.Contains(err.Error(), "install the package nftables") {
		t.Errorf("New without nft = %v, want ErrNoCommand that names the package", err)
	}
}

// TestHealing lets another program spoil the table in every way; Check sees each and the next Apply mends it.
func TestHealing(t *testing.T) {
	n := newNode(t)
	n.apply(t, web(), 3)
	pristine := n.nft(t, "list", "table", "ip", "ironlb")
	for _, spoil := range []string{
		"flush ruleset",
		"delete table ip ironlb",
		"flush chain ip ironlb postrouting",
		"insert rule ip ironlb prerouting accept",
		"add chain ip ironlb prerouting { policy drop; }",
		"add chain ip ironlb extra",
		"add element ip ironlb served { 203.0.113.4 . tcp . 22 }",
		"delete element ip ironlb masqueraded { 203.0.113.4 . tcp . 80 }",
		`add element ip ironlb addresses { 203.0.113.9 comment "foreign" }`,
		"add set ip ironlb more { type ipv4_addr; elements = { 192.0.2.1 } }",
	} {
		for _, lost := range []bool{false, true} {
			n.wantIntact(t, true)
			n.nft(t, spoil)
			if lost {
				n.firewall.Lose() // only the list can tell
			}
			n.wantIntact(t, false)
			n.apply(t, web(), 3)
			if got := n.nft(t, "list", "table", "ip", "ironlb"); got != pristine {
				t.Errorf("after %q and Apply\n%s\nwant\n%s", spoil, got, pristine)
			}
		}
	}
}

// TestHealingWithoutCheck: a transaction that the kernel refuses builds the table anew.
func TestHealingWithoutCheck(t *testing.T) {
	n := newNode(t)
	n.apply(t, web(), 3)
	n.nft(t, "flush ruleset")
	more := web()
	more.Served[key(ipvs.TCP, vip, 443)] = struct{}{}
	n.apply(t, more, 4)
	n.wantIntact(t, true)
	n.wantListed(t, more)
}

func TestForeignTableStays(t *testing.T) {
	n := newNode(t)
	n.nft(t, "add table ip foreign; add chain ip foreign c { type filter hook prerouting priority -300; }; "+
		"add rule ip foreign c counter; add table ip6 ironlb; add set ip6 ironlb s { type ipv6_addr; }")
	foreign := func() string {
		return n.nft(t, "-a", "list", "table", "ip", "foreign") + n.nft(t, "-a", "list", "table", "ip6", "ironlb")
	}
	before := foreign()
	n.apply(t, web(), 3)
	n.wantIntact(t, true)
	n.apply(t, ipvs.Firewall{}, 3)
	for range 2 {
		n.Must(t, func() error { return n.firewall.Remove(context.Background()) })
	}
	if after := foreign(); after != before {
		t.Errorf("foreign tables changed from\n%sto\n%s", before, after)
	}
	if got := n.nft(t, "list", "tables"); strings.Contains(got, "table ip ironlb") {
		t.Errorf("our table is still there:\n%s", got)
	}
}

// TestUnlistedPortsAreRefused sends real packets from a client to a node that has sockets on every address.
func TestUnlistedPortsAreRefused(t *testing.T) {
	n, client := newNode(t), netspace.New(t)
	netspace.Join(t, client, "eth0", "192.0.2.2/24", n.Space, "eth0", "192.0.2.1/24")
	client.Route(t, "203.0.113.0/24", "192.0.2.1")
	n.Local(t, vip)
	n.ServeTCP(t, "0.0.0.0:80", "web")
	n.ServeTCP(t, "0.0.0.0:22", "sshd")
	n.ServeUDP(t, vip+":53", "dns")
	n.ServeUDP(t, vip+":69", "tftp")
	n.ServeUDP(t, "192.0.2.1:69", "tftp")

	works := func(from *netspace.Space, network, to string) {
		t.Helper()
		if got, err := from.Ask(network, to); err != nil {
			t.Errorf("%s %s: answer %q, error %v", network, to, got, err)
		}
	}
	refused := func(network, to string) {
		t.Helper()
		if got, err := client.Ask(network, to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s %s: answer %q, error %v; want it refused", network, to, got, err)
		}
	}
	works(client, "tcp", vip+":22") // without the firewall every socket is open at the virtual address
	works(client, "udp", vip+":69")

	firewall := web()
	firewall.Served[key(ipvs.UDP, vip, 53)] = struct{}{}
	n.apply(t, firewall, 4)
	works(client, "tcp", vip+":80")
	works(client, "udp", vip+":53")
	refused("tcp", vip+":22")
	refused("tcp", vip+":53")
	refused("tcp", vip+":1")
	refused("udp", vip+":69")
	refused("udp", vip+":80")
	refused("ip4:132", vip) // SCTP
	works(client, "tcp", "192.0.2.1:22")
	works(client, "udp", "192.0.2.1:69")
	works(n.Space, "tcp", vip+":22") // the node itself may
	if err := client.Ping(vip); err != nil {
		t.Errorf("ping %s: %v", vip, err)
	}
}

// TestMasquerade has a Pod that can answer the node only, and a foreign table that turns VIP:80 to it as IPVS would.
// The table is rebuilt under an open connection.
func TestMasquerade(t *testing.T) {
	n, client, pod := newNode(t), netspace.New(t), netspace.New(t)
	netspace.Join(t, client, "eth0", "192.0.2.2/24", n.Space, "eth0", "192.0.2.1/24")
	netspace.Join(t, pod, "eth0", "198.51.100.2/24", n.Space, "pod", "198.51.100.1/24")
	client.Route(t, "203.0.113.0/24", "192.0.2.1")
	n.Sysctl(t, "net.ipv4.ip_forward", "1")
	n.Local(t, vip)
	n.nft(t, "add table ip foreign; add chain ip foreign c { type nat hook prerouting priority dstnat; }; "+
		"add rule ip foreign c ip daddr 203.0.113.4 tcp dport 80 dnat to 198.51.100.2:8080")
	pod.ServeTCP(t, "0.0.0.0:8080", "pod")

	n.apply(t, web(), 3)
	conn, err := client.Dial("tcp", "", vip+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantAnswer := func(from string) {
		t.Helper()
		if got, err := netspace.AskOn(conn); err != nil || got != from {
			t.Errorf("answer %q, error %v; want %q", got, err, from)
		}
	}
	wantAnswer("pod 198.51.100.1")
	n.open(t)
	n.wantListed(t, web())
	n.apply(t, web(), 3)
	wantAnswer("pod 198.51.100.1")

	// Local policy: the Pod has a way back to the client, which keeps its address.
	pod.Route(t, "0.0.0.0/0", "198.51.100.1")
	local := web()
	clear(local.Masquerade)
	n.apply(t, local, 1)
	if got, err := client.Ask("tcp", vip+":80"); err != nil || got != "pod 192.0.2.2" {
		t.Errorf("answer %q, error %v; want the client's own address", got, err)
	}

	// The node's own client that has a virtual address as its source.
	conn, err = n.Dial("tcp", vip, "198.51.100.2:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantAnswer("pod 198.51.100.1")
}
