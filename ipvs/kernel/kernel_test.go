package kernel_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	mobyipvs "github.com/moby/ipvs"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/kernel"
)

var web = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}

// needIPVS leaves the test out in short mode. Otherwise a kernel without IPVS fails it, so that it is never passed over
// in silence.
func needIPVS(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("capability: kernel with IPVS, and root (left out in short mode)")
	}
}

// newNamespace makes an empty network namespace that goes away with the test.
func newNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (root?): %v", err)
	}
	if err := netns.Set(before); err != nil {
		t.Fatal(err) // the thread stays locked and dies with the test
	}
	runtime.UnlockOSThread()
	t.Cleanup(func() { ns.Close() })
	return ns
}

func openNew(t *testing.T) (*kernel.Kernel, netns.NsHandle) {
	t.Helper()
	ns := newNamespace(t)
	k, err := kernel.OpenAt(ns)
	if err != nil {
		t.Fatalf("this test needs a kernel with IPVS; run it in the guest: %v", err)
	}
	t.Cleanup(k.Close)
	return k, ns
}

func TestContract(t *testing.T) {
	needIPVS(t)
	ipvstest.Contract(t, func(t *testing.T) ipvstest.Driver {
		k, _ := openNew(t)
		return k
	})
}

// TestOtherProgram lets another handle act as another program: its firewall mark is not listed, its leftover of a probe
// does not disturb ours, its flush is seen.
func TestOtherProgram(t *testing.T) {
	needIPVS(t)
	k, ns := openNew(t)
	other, err := mobyipvs.New(fmt.Sprintf("/proc/self/fd/%d", int(ns)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, s := range []*mobyipvs.Service{
		{FWMark: 7, SchedName: "rr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff},
		{
			Address: net.IPv4(198, 51, 100, 0), Port: 20000, Protocol: unix.IPPROTO_TCP,
			SchedName: "wrr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff,
		},
	} {
		if err := other.NewService(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Probe(ipvs.RoundRobin); err != nil {
		t.Error(err)
	}
	if _, err := k.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: web, Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Virtuals(); err != nil || len(got) != 1 || got[web].Scheduler != "rr" {
		t.Errorf("Virtuals = %v, %v; want only %v", got, err, web)
	}
	if services, err := other.GetServices(); err != nil || len(services) != 2 {
		t.Errorf("the other program sees %d services, %v; want its firewall mark and ours", len(services), err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Virtuals(); err != nil || len(got) != 0 {
		t.Errorf("after a flush Virtuals = %v, %v", got, err)
	}
}

// TestNoPermission takes CAP_NET_ADMIN from one thread, which then dies.
func TestNoPermission(t *testing.T) {
	needIPVS(t)
	k, _ := openNew(t)
	got := make(chan error)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			got <- err
			return
		}
		got <- k.Probe(ipvs.RoundRobin)
	}()
	if err := <-got; !errors.Is(err, ipvs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("Probe without capabilities = %v, want ErrPermission that names CAP_NET_ADMIN", err)
	}
}

// TestOpen runs everywhere: where there is no IPVS the error says so and how to mend it, each time anew.
func TestOpen(t *testing.T) {
	for range 2 {
		k, err := kernel.Open()
		if err == nil {
			k.Close()
			continue
		}
		if !errors.Is(err, ipvs.ErrNoModule) || !strings.Contains(err.Error(), "modprobe ip_vs") {
			t.Errorf("Open = %v, want ErrNoModule that names \"modprobe ip_vs\"", err)
		}
	}
}
