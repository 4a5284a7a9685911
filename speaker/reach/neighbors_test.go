package reach

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/view"
)

// TestNeighborAnsweredAt: the time of an answer is when it arrived, however late it is read and whatever has confirmed
// the entry since. A later time would make the witness appear slow and delay detection.
func TestNeighborAnsweredAt(t *testing.T) {
	self, other := netspace.New(t), netspace.New(t)
	netspace.Join(t, self, "eth0", "192.0.2.1/24", other, "eth0", "192.0.2.2/24")
	addr := netip.MustParseAddr("192.0.2.2")
	if err := self.Ping(addr.String()); err != nil {
		t.Fatal(err)
	}
	const late = 300 * time.Millisecond
	self.Must(t, func() error {
		n, err := openNeighbors(func(netip.Addr, [6]byte) bool { return true })
		if err != nil {
			return err
		}
		defer n.close()
		if sent, err := n.send(Probe{Target: Target{addr, view.WitnessNeighbor}, ID: 1}); !sent || err != nil {
			return fmt.Errorf("sent %v, %w", sent, err)
		}
		link, err := self.Handle.LinkByName("eth0")
		if err != nil {
			return err
		}
		deadline := time.Now().Add(10 * time.Second)
		var have *netlink.Neigh
		for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
			if have, err = n.get(link.Attrs().Index, addr); err != nil {
				return err
			}
			if have != nil && have.State == unix.NUD_REACHABLE && time.Duration(have.Updated)*clockTick >= late {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the entry is %+v", have)
			}
		}
		answered := time.Now().Add(-late)
		if err := self.Handle.NeighSet(have); err != nil { // confirms it now
			return err
		}
		answers := 0
		err = n.answers(func(at time.Time, q Probe) {
			answers++
			if after := at.Sub(answered); q.ID != 1 || after > 2*clockTick {
				t.Errorf("question %d was answered %v after its answer", q.ID, after)
			}
		})
		if answers != 1 {
			t.Errorf("%d answers", answers)
		}
		return err
	})
}

// TestNeighborDelayed: the kernel believes for some seconds that a host which answered lately is there (DELAY), and
// then calls its entry reachable, if other packets confirm it, without an answer. That is none, also after more probes
// than keep an entry from failing: a node that came back has died again.
func TestNeighborDelayed(t *testing.T) {
	self, other := netspace.New(t), netspace.New(t)
	netspace.Join(t, self, "eth0", "192.0.2.1/24", other, "eth0", "192.0.2.2/24")
	self.Sysctl(t, "net/ipv4/neigh/eth0/delay_first_probe_time", "1")
	self.Sysctl(t, "net/ipv4/neigh/eth0/retrans_time_ms", "50")
	addr := netip.MustParseAddr("192.0.2.2")
	if err := self.Ping(addr.String()); err != nil {
		t.Fatal(err)
	}
	self.Must(t, func() error {
		n, err := openNeighbors(func(netip.Addr, [6]byte) bool { return true })
		if err != nil {
			return err
		}
		defer n.close()
		link, err := self.Handle.LinkByName("eth0")
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		have, err := n.get(index, addr)
		if err != nil {
			return err
		}
		if have == nil || have.State != unix.NUD_REACHABLE {
			return fmt.Errorf("the entry is %+v", have)
		}
		have.State = unix.NUD_STALE
		if err := self.Handle.NeighSet(have); err != nil {
			return err
		}
		if err := self.Ping(addr.String()); err != nil {
			return err
		}
		if have, err = n.get(index, addr); err != nil || have.State != unix.NUD_DELAY {
			return fmt.Errorf("the entry is %+v, %w", have, err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		other.Sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "8") // silent
		n.silent[addr] = maxForcedProbes
		deadline := time.Now().Add(10 * time.Second)
		tick := time.NewTicker(10 * time.Millisecond)
		for id := uint64(1); ; id++ {
			if sent, err := n.send(Probe{Target: Target{addr, view.WitnessNeighbor}, ID: id}); !sent || err != nil {
				return fmt.Errorf("sent %v, %w", sent, err)
			}
			if id < 60 { // as the acknowledgments of a TCP connection do
				if err := unix.Sendto(fd, nil, unix.MSG_CONFIRM, &unix.SockaddrInet4{Port: 9, Addr: addr.As4()}); err != nil {
					return err
				}
			}
			<-tick.C
			if have, err = n.get(index, addr); err != nil {
				return err
			}
			if have == nil || have.State == unix.NUD_FAILED {
				return nil
			}
			if err := n.answers(func(_ time.Time, q Probe) { t.Errorf("question %d was answered", q.ID) }); err != nil {
				return err
			}
			if t.Failed() || time.Now().After(deadline) {
				return fmt.Errorf("the entry is %+v", have)
			}
		}
	})
}
