package neighbor

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// TestAnsweredAt: the time of an answer is when it arrived, however late it is read and whatever has confirmed
// the entry since. A later time would make the witness appear slow and delay detection.
func TestAnsweredAt(t *testing.T) {
	self, other := netspace.New(t), netspace.New(t)
	netspace.Join(t, self, "eth0", "192.0.2.1/24", other, "eth0", "192.0.2.2/24")
	addr := netip.MustParseAddr("192.0.2.2")
	if err := self.Ping(addr.String()); err != nil {
		t.Fatal(err)
	}
	const late = 300 * time.Millisecond
	self.Must(t, func() error {
		table, err := Open()
		if err != nil {
			return err
		}
		defer table.Close()
		index, direct, ok := table.Route(addr)
		if !direct || !ok {
			return fmt.Errorf("direct %v, ok %v", direct, ok)
		}
		have, err := table.Entry(index, addr)
		if err != nil {
			return err
		}
		sent := time.Now()
		if is, err := table.Probe(index, addr, have, [6]byte{}); !is || err != nil {
			return fmt.Errorf("sent %v, %w", is, err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
			if have, err = table.Entry(index, addr); err != nil {
				return err
			}
			if have != nil && have.State == unix.NUD_REACHABLE && time.Duration(have.Updated)*Tick >= late {
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
		if have, err = table.Entry(index, addr); err != nil {
			return err
		}
		at, ok := Answered(have, time.Now(), sent)
		if after := at.Sub(answered); !ok || after > 2*Tick {
			t.Errorf("answered %v, %v after the answer", ok, after)
		}
		return nil
	})
}

// TestDelayed: the kernel believes for some seconds that a host which answered lately is there (DELAY), and
// then calls its entry reachable, if other packets confirm it, without an answer. That is none, also once no more probes
// keep the entry from failing: a node that came back has died again.
func TestDelayed(t *testing.T) {
	self, other := netspace.New(t), netspace.New(t)
	netspace.Join(t, self, "eth0", "192.0.2.1/24", other, "eth0", "192.0.2.2/24")
	self.Sysctl(t, "net/ipv4/neigh/eth0/delay_first_probe_time", "1")
	self.Sysctl(t, "net/ipv4/neigh/eth0/retrans_time_ms", "50")
	addr := netip.MustParseAddr("192.0.2.2")
	if err := self.Ping(addr.String()); err != nil {
		t.Fatal(err)
	}
	self.Must(t, func() error {
		table, err := Open()
		if err != nil {
			return err
		}
		defer table.Close()
		link, err := self.Handle.LinkByName("eth0")
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		have, err := table.Entry(index, addr)
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
		if have, err = table.Entry(index, addr); err != nil || have.State != unix.NUD_DELAY {
			return fmt.Errorf("the entry is %+v, %w", have, err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		other.Sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "8") // silent
		deadline := time.Now().Add(10 * time.Second)
		tick := time.NewTicker(10 * time.Millisecond)
		for round := 0; ; round++ {
			since := time.Now()
			if have.State != unix.NUD_PROBE { // as speaker/reach after many probes without an answer
				if sent, err := table.Probe(index, addr, have, [6]byte{}); !sent || err != nil {
					return fmt.Errorf("sent %v, %w", sent, err)
				}
			}
			if round < 60 { // as the acknowledgments of a TCP connection do
				if err := unix.Sendto(fd, nil, unix.MSG_CONFIRM, &unix.SockaddrInet4{Port: 9, Addr: addr.As4()}); err != nil {
					return err
				}
			}
			<-tick.C
			if have, err = table.Entry(index, addr); err != nil {
				return err
			}
			if have == nil || have.State == unix.NUD_FAILED {
				return nil
			}
			if _, ok := Answered(have, time.Now(), since); ok {
				t.Errorf("probe %d was answered", round)
			}
			if t.Failed() || time.Now().After(deadline) {
				return fmt.Errorf("the entry is %+v", have)
			}
		}
	})
}
