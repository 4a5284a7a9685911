package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/link"
)

var (
	vip  = netip.MustParseAddr("203.0.113.4")
	vip6 = netip.MustParseAddr("2001:db8::4")
)

func open(t testing.TB, s *netspace.Space) *link.Link {
	t.Helper()
	var l *link.Link
	s.Must(t, func() (err error) {
		l, err = link.Open()
		return err
	})
	t.Cleanup(l.Close)
	return l
}

func wantList(t *testing.T, l *link.Link, want ...netip.Addr) {
	t.Helper()
	got, _, err := l.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("List = %v, want %v", got, want)
	}
	for _, addr := range want {
		if _, ok := got[addr]; !ok {
			t.Errorf("List = %v, lacks %v", got, addr)
		}
	}
}

func wantChange(t *testing.T, act func(netip.Addr) (bool, error), addr netip.Addr, want bool) {
	t.Helper()
	if changed, err := act(addr); err != nil || changed != want {
		t.Errorf("%v: changed %v, error %v; want changed %v", addr, changed, err, want)
	}
}

func ip(t *testing.T, s *netspace.Space, args ...string) string {
	t.Helper()
	var out []byte
	s.Must(t, func() (err error) {
		if out, err = exec.Command("ip", args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return err
	})
	return string(out)
}

func TestAddListRemove(t *testing.T) {
	s := netspace.New(t)
	l := open(t, s)
	before := ip(t, s, "route", "show", "table", "local")
	wantList(t, l)
	for _, addr := range []netip.Addr{vip, vip6} {
		wantChange(t, l.Add, addr, true)
		wantChange(t, l.Add, addr, false)
	}
	wantList(t, l, vip, vip6)
	wantList(t, open(t, s), vip, vip6) // adopted by another process

	if got, want := ip(t, s, "-d", "route", "get", vip.String()), "local 203.0.113.4 dev lo"; !strings.HasPrefix(got, want) {
		t.Errorf("ip route get: %q, want %q", got, want)
	}
	for _, addr := range []netip.Addr{vip, vip6} {
		wantChange(t, l.Remove, addr, true)
		wantChange(t, l.Remove, addr, false)
	}
	wantList(t, l)
	if after := ip(t, s, "route", "show", "table", "local"); after != before {
		t.Errorf("local routes before\n%safter\n%s", before, after)
	}
}

// TestForeignStays covers an address of an interface and a manual local route: neither is adopted or removed.
func TestForeignStays(t *testing.T) {
	s := netspace.New(t)
	l := open(t, s)
	s.Address(t, "lo", vip.String()+"/32")
	s.Address(t, "lo", vip6.String()+"/128")
	byHand, byHand6 := netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8::5")
	for _, addr := range []netip.Addr{byHand, byHand6} {
		ip(t, s, "route", "add", "local", addr.String(), "dev", "lo", "proto", "static")
	}
	locals := func() string {
		return ip(t, s, "route", "show", "table", "local") + ip(t, s, "-6", "route", "show", "table", "local")
	}
	before := locals()
	for _, addr := range []netip.Addr{vip, byHand, vip6, byHand6} {
		if changed, err := l.Add(addr); changed || !errors.Is(err, link.ErrForeign) || !strings.Contains(err.Error(), addr.String()) {
			t.Errorf("Add(%v) = %v, %v; want ErrForeign that names it", addr, changed, err)
		}
		wantChange(t, l.Remove, addr, false)
	}
	wantList(t, l)
	_, others, err := l.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{vip, byHand, vip6, byHand6, netip.MustParseAddr("127.0.0.1")} {
		if _, ok := others[addr]; !ok {
			t.Errorf("List: others = %v, lack %v", others, addr)
		}
	}
	if after := locals(); after != before {
		t.Errorf("local routes before\n%safter\n%s", before, after)
	}
}

// TestForeignComesLater: an interface gets the address while our route exists. Removing our route keeps the address.
func TestForeignComesLater(t *testing.T) {
	for _, addr := range []netip.Addr{vip, vip6} {
		s := netspace.New(t)
		l := open(t, s)
		wantChange(t, l.Add, addr, true)
		s.Address(t, "lo", netip.PrefixFrom(addr, addr.BitLen()).String())
		wantList(t, l, addr)
		wantChange(t, l.Remove, addr, true)
		wantChange(t, l.Remove, addr, false)
		want := "local " + addr.String() + " dev lo proto kernel"
		got := ip(t, s, "route", "show", "table", "local") + ip(t, s, "-6", "route", "show", "table", "local")
		if strings.Count(got, addr.String()+" dev") != 1 || !strings.Contains(strings.ReplaceAll(got, " table local", ""), want) {
			t.Errorf("want %q once in\n%s", want, got)
		}
	}
}

// TestKernelDoesNotAnswerARP sends an ARP request for a virtual address in an on-link subnet: with the sysctls set, and
// without them, to verify that it would be answered.
func TestKernelDoesNotAnswerARP(t *testing.T) {
	node, client := netspace.New(t), netspace.New(t)
	netspace.Join(t, client, "eth0", "203.0.113.129/24", node, "eth0", "203.0.113.130/24")
	l := open(t, node)
	wantChange(t, l.Add, vip, true)
	mac := node.MAC(t, "eth0").String()

	if got := probeARP(t, client, vip); got != mac {
		t.Errorf("without the sysctls %v is at %q, want %s: this test proves nothing", vip, got, mac)
	}
	node.Must(t, func() error {
		_, err := link.SetSysctls([]link.Sysctl{
			{Key: "net.ipv4.conf.all.arp_ignore", Value: "1"}, {Key: "net.ipv4.conf.all.arp_announce", Value: "2"},
		})
		return err
	})
	if got := probeARP(t, client, vip); got != "" {
		t.Errorf("%v is at %s, want no answer", vip, got)
	}
	if got := probeARP(t, client, netip.MustParseAddr("203.0.113.130")); got != mac {
		t.Errorf("the node's own address is at %q, want %s", got, mac)
	}
}

// probeARP sends one request for the address, and then one for the node's own address, which is answered after the
// first. It returns the hardware address in the answer to the first, or nothing.
func probeARP(t *testing.T, from *netspace.Space, addr netip.Addr) string {
	t.Helper()
	var client *arp.Client
	from.Must(t, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			client, err = arp.Dial(eth0)
		}
		return err
	})
	defer client.Close()
	if err := client.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr("203.0.113.130")
	for _, target := range []netip.Addr{addr, own} {
		if err := client.Request(target); err != nil {
			t.Fatal(err)
		}
	}
	answer := ""
	for {
		packet, _, err := client.Read()
		if err != nil {
			t.Fatalf("read the answer for %v: %v", own, err)
		}
		if packet.Operation != arp.OperationReply {
			continue
		}
		if packet.SenderIP == addr {
			answer = packet.SenderHardwareAddr.String()
		}
		if packet.SenderIP == own {
			return answer
		}
	}
}

func TestWatch(t *testing.T) {
	node, client := netspace.New(t), netspace.New(t)
	netspace.Join(t, client, "eth0", "192.0.2.2/24", node, "eth0", "192.0.2.1/24")
	l := open(t, node)
	ctx, cancel := context.WithCancel(context.Background())
	changes, routed, ended := make(chan struct{}, 100), make(chan struct{}, 100), make(chan error, 1)
	go func() {
		ended <- node.Do(func() error {
			return link.Watch(ctx, func() { changes <- struct{}{} }, func() { routed <- struct{}{} })
		})
	}()
	changed := func(why string) {
		t.Helper()
		select {
		case <-changes:
		case err := <-ended:
			t.Fatalf("%s: Watch ended: %v", why, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: not called", why)
		}
	}
	changed("start")
	waitIdle(t, changes)
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"a new address", func() { node.Address(t, "eth0", "198.51.100.1/26") }},
		{"a new IPv6 address", func() { node.Address(t, "eth0", "2001:db8:1::1/64") }},
		{"our route removed", func() {
			wantChange(t, l.Add, vip, true)
			ip(t, node, "route", "del", "local", vip.String(), "dev", "lo", "table", "local")
		}},
		{"our IPv6 route removed", func() {
			wantChange(t, l.Add, vip6, true)
			ip(t, node, "-6", "route", "del", "local", vip6.String(), "dev", "lo", "table", "local")
		}},
		{"our route replaced by another program", func() {
			wantChange(t, l.Add, vip, true)
			drain(changes)
			ip(t, node, "route", "replace", "local", vip.String(), "dev", "lo", "table", "local", "proto", "static", "scope", "host")
		}},
		{"a route of another program removed", func() {
			ip(t, node, "route", "del", "local", vip.String(), "dev", "lo", "table", "local", "proto", "static")
		}},
		{"the other end down", func() { ip(t, client, "link", "set", "eth0", "down") }},
		{"a new interface", func() {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "br0"
			if err := node.Handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		drain(changes)
		act.do()
		changed(act.name)
	}
	drain(routed)
	ip(t, node, "route", "add", "198.51.100.128/25", "via", "192.0.2.254")
	select {
	case <-routed:
	case <-time.After(5 * time.Second):
		t.Error("a new gateway: not called")
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Watch = %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Watch continues after its context has ended")
	}
}

// waitIdle waits until the interfaces have settled (IPv6 runs duplicate address detection for a second). It never
// returns if a subscription fails and is renewed repeatedly, with a call each time.
func waitIdle(t *testing.T, changes chan struct{}) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case <-changes:
		case <-time.After(500 * time.Millisecond):
			return
		case <-deadline:
			t.Fatal("called although nothing changes")
		}
	}
}

func drain(changes chan struct{}) {
	for {
		select {
		case <-changes:
		default:
			return
		}
	}
}
