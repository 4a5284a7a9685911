package kernel_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
)

var web = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}

// openNew opens IPVS in a new namespace. In short mode it skips the test; otherwise a kernel without IPVS fails the
// test, so that this is never overlooked.
//
// The namespace has its loopback interface up: before a namespace has any address, the kernel treats every real server
// as a broadcast address and refuses it.
func openNew(t *testing.T) (*kernel.Kernel, *netspace.Space) {
	t.Helper()
	s := netspace.New(t)
	k, err := kernel.OpenAt(s.NS)
	if err != nil {
		t.Fatalf("this test needs a kernel with IPVS, \"make test-kernel\" boots one: %v", err)
	}
	t.Cleanup(k.Close)
	return k, s
}

func TestContract(t *testing.T) {
	ipvstest.Contract(t, func(t *testing.T) ipvstest.Driver {
		k, _ := openNew(t)
		return k
	})
}

func TestDifferences(t *testing.T) {
	k, _ := openNew(t)
	ipvstest.Differences(t, k)
}

func TestContractIPVS(t *testing.T) {
	ipvstest.ContractIPVS(t, func(t *testing.T) (ipvstest.IPVS, ipvstest.Other) {
		k, s := openNew(t)
		return k, newOther(t, s)
	})
}

// TestOtherProgram uses a second handle as another program. Its firewall mark is not listed, and kube-proxy's probe
// object stays. A residual probe object of IronLB is treated as its own, and a foreign flush is detected.
func TestOtherProgram(t *testing.T) {
	k, s := openNew(t)
	other, err := mobyipvs.New(fmt.Sprintf("/proc/self/fd/%d", int(s.NS)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, service := range []*mobyipvs.Service{
		{FWMark: 7, SchedName: "rr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff},
		probe(20000), probe(7473),
	} {
		if err := other.NewService(service); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Probe(ipvs.RoundRobin); err != nil {
		t.Error(err)
	}
	if _, err := k.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: web, Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
		t.Fatal(err)
	}
	kubeProxys := ipvs.Key{Addr: netip.MustParseAddr("198.51.100.0"), Protocol: ipvs.TCP, Port: 20000}
	if got, err := k.Virtuals(); err != nil || len(got) != 2 || got[web].Scheduler != "rr" || got[kubeProxys].Scheduler != "wrr" {
		t.Errorf("Virtuals = %v, %v; want %v and %v", got, err, web, kubeProxys)
	}
	if services, err := other.GetServices(); err != nil || len(services) != 3 {
		t.Errorf("the other program sees %d services, %v; want its own two and ours", len(services), err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Virtuals(); err != nil || len(got) != 0 {
		t.Errorf("after a flush Virtuals = %v, %v", got, err)
	}
}

// probe returns a virtual server as created by a probe.
func probe(port uint16) *mobyipvs.Service {
	return &mobyipvs.Service{
		Address: net.IPv4(198, 51, 100, 0), Port: port, Protocol: unix.IPPROTO_TCP,
		SchedName: "wrr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff,
	}
}

// TestText compares the text of a table with ipvsadm's, without its title and its columns of counters.
func TestText(t *testing.T) {
	k, s := openNew(t)
	want := ipvs.Table{
		web: {
			Settings: ipvs.Settings{Scheduler: "rr", Flags: ipvs.Persistent, Timeout: 10800},
			RealServers: map[netip.AddrPort]ipvs.RealServer{
				netip.MustParseAddrPort("192.0.2.11:8080"): {Weight: 1},
				netip.MustParseAddrPort("192.0.2.12:8080"): {Weight: 0},
			},
		},
		dns: {Settings: ipvs.Settings{Scheduler: "wrr"}, RealServers: map[netip.AddrPort]ipvs.RealServer{
			netip.MustParseAddrPort("192.0.2.11:53"): {Weight: 100},
			netip.MustParseAddrPort("192.0.2.12:53"): {Weight: 1, Forward: ipvs.Tunnel},
		}},
	}
	if _, err := k.Apply(ipvs.Diff(nil, want)); err != nil {
		t.Fatal(err)
	}
	var out []byte
	s.Must(t, func() (err error) {
		out, err = exec.Command("ipvsadm", "-Ln").Output()
		return err
	})
	_, listed, _ := strings.Cut(string(out), "\n")
	var lines []string
	for _, line := range strings.Split(strings.TrimSpace(listed), "\n") {
		if fields := strings.Fields(line); fields[0] == "->" {
			line = strings.Join(fields[:4], " ")
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	var ours []string
	for _, line := range strings.Split(strings.TrimSpace(want.String()), "\n") {
		ours = append(ours, strings.Join(strings.Fields(line), " "))
	}
	slices.Sort(lines)
	slices.Sort(ours)
	if !slices.Equal(lines, ours) {
		t.Errorf("ipvsadm prints\n%s\nours is\n%v", out, want)
	}
}

// TestNoPermission drops CAP_NET_ADMIN in one thread, which then ends.
func TestNoPermission(t *testing.T) {
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

// TestOpen runs everywhere: without IPVS the error names the cause and the remediation, at each call.
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
