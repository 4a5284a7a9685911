package paused

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/controlplane"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// capture records the frames about some addresses on a port: requests (its own included), answers and announcements.
type capture struct {
	addrs []netip.Addr
	conn  *packet.Conn
	ended chan struct{}

	mu  sync.Mutex
	all []captured
}

type captured struct {
	steady.Frame
	at time.Time
}

func newCapture(p lab.Port, addrs []netip.Addr) (*capture, error) {
	c := &capture{addrs: addrs, ended: make(chan struct{})}
	err := controlplane.Within(p.Namespace, func() error {
		ifi, err := net.InterfaceByName(p.Interface)
		if err != nil {
			return err
		}
		c.conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	go c.run()
	return c, nil
}

func (c *capture) run() {
	defer close(c.ended)
	buf := make([]byte, 2048)
	for {
		n, _, err := c.conn.ReadFrom(buf)
		if err != nil {
			return // closed
		}
		f, ok := steady.Parse(buf[:n])
		if !ok || !slices.Contains(c.addrs, f.Addr) {
			continue
		}
		c.mu.Lock()
		c.all = append(c.all, captured{f, time.Now()})
		c.mu.Unlock()
	}
}

func (c *capture) close() error {
	err := c.conn.Close()
	<-c.ended
	return err
}

// given returns the answers and announcements of a hardware address since a moment.
func (c *capture) given(mac string, since time.Time) (found []captured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.all {
		if (f.Kind == steady.Answer || f.Kind == steady.Gratuitous) && f.MAC == mac && f.at.After(since) {
			found = append(found, f)
		}
	}
	return found
}

// asked reports whether an address was requested in a span of time.
func (c *capture) asked(addr, asker netip.Addr, from, to time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.all, func(f captured) bool {
		return f.Kind == steady.Ask && f.Addr == addr && f.Asker == asker && f.at.After(from) && f.at.Before(to)
	})
}
