package kernel_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/kernel"
)

// other is another program: a handle of the library, without this package around it.
type other struct{ *mobyipvs.Handle }

func newOther(t testing.TB, s *netspace.Space) other {
	t.Helper()
	h, err := mobyipvs.New(fmt.Sprintf("/proc/self/fd/%d", int(s.NS)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return other{h}
}

func (o other) AddMark(mark uint32) error {
	return o.NewService(&mobyipvs.Service{FWMark: mark, SchedName: "rr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff})
}

func (o other) Marks() (marks []uint32, err error) {
	services, err := o.GetServices()
	for _, s := range services {
		if s.FWMark != 0 {
			marks = append(marks, s.FWMark)
		}
	}
	slices.Sort(marks)
	return marks, err
}

func (o other) SetWeight(key ipvs.Key, at netip.AddrPort, weight uint32) error {
	return o.UpdateDestination(serviceOf(key), destinationOf(at, weight))
}

func (other) Hide(t *testing.T, scheduler string) (show func()) {
	return kernel.HideModule(t, "ip_vs_"+scheduler)
}

func serviceOf(key ipvs.Key) *mobyipvs.Service {
	family := uint16(unix.AF_INET)
	if key.Addr.Is6() {
		family = unix.AF_INET6
	}
	return &mobyipvs.Service{AddressFamily: family, Address: key.Addr.AsSlice(), Protocol: uint16(key.Protocol), Port: key.Port}
}

func destinationOf(at netip.AddrPort, weight uint32) *mobyipvs.Destination {
	return &mobyipvs.Destination{Address: at.Addr().AsSlice(), Port: at.Port(), Weight: int(weight)}
}

// The library reads 16 of the 32 bits of a weight. Therefore this package lists real servers itself.
func TestLibraryReads16BitsOfAWeight(t *testing.T) {
	k, s := openNew(t)
	o := newOther(t, s)
	at := netip.MustParseAddrPort("192.0.2.11:8080")
	if _, err := k.Apply(ipvs.Diff(nil, ipvs.Table{web: rr(map[netip.AddrPort]ipvs.RealServer{at: {Weight: 1}})})); err != nil {
		t.Fatal(err)
	}
	if err := o.SetWeight(web, at, 1<<16+1); err != nil {
		t.Fatal(err)
	}
	got, err := o.GetDestinations(serviceOf(web))
	if err != nil || len(got) != 1 || got[0].Weight != 1 {
		t.Errorf("the library lists %+v, %v; if it reads the full weight now, it can list real servers for this package", got, err)
	}
}
