package kernel

import (
	"errors"
	"fmt"
	"testing"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// fakeLibrary answers GetService, and GetDestinations by port.
type fakeLibrary struct {
	library
	err          error
	destinations map[uint16]error
}

func (l fakeLibrary) GetService(*mobyipvs.Service) (*mobyipvs.Service, error) { return nil, l.err }

func (l fakeLibrary) GetDestinations(s *mobyipvs.Service) ([]*mobyipvs.Destination, error) {
	if err := l.destinations[s.Port]; err != nil {
		return nil, err
	}
	return []*mobyipvs.Destination{{Address: s.Address, Port: s.Port, ActiveConnections: 1}}, nil
}

// A library without the number of the netlink family sends requests that the kernel acknowledges and ignores:
// GetService then gets no virtual server and no errno. With the number of a family that has gone it gets ENOENT.
func TestLibraryReachesIPVS(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{nil, nil},
		{unix.ESRCH, nil},
		{errors.New("Expected only one service obtained=0"), ipvs.ErrNoModule},
		{unix.ENOENT, ipvs.ErrNoModule},
		{unix.EPERM, ipvs.ErrPermission},
		{unix.ENOBUFS, unix.ENOBUFS},
	} {
		if got := reaches(fakeLibrary{err: c.err}); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// A virtual server whose counters cannot be read does not hide the others.
func TestSomeStatsFail(t *testing.T) {
	keys := make([]ipvs.Key, 4)
	for i := range keys {
		keys[i] = ipvs.Key{Addr: probeKey.Addr, Protocol: ipvs.TCP, Port: uint16(1 + i)}
	}
	stats, err := realStats(fakeLibrary{destinations: map[uint16]error{2: unix.ESRCH, 3: unix.EPERM}}, keys)
	if !errors.Is(err, ipvs.ErrPermission) {
		t.Errorf("error %v, want ErrPermission", err)
	}
	if _, is := stats[keys[3]]; len(stats) != 2 || !is {
		t.Errorf("got %s, want those of %v and %v", fmt.Sprint(stats), keys[0], keys[3])
	}
}
