package l2

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// addrSet is a set of addresses that is never changed once it is shared.
type addrSet map[netip.Addr]struct{}

// responder answers ARP requests on one interface.
type responder struct {
	link  link
	conn  *packet.Conn
	log   *slog.Logger
	owned atomic.Pointer[addrSet]
	// closed is set when we closed the socket. The errors of the library for that are not net.ErrClosed.
	closed atomic.Bool
	// broken is set when the socket is of no use any more; it must be replaced.
	broken atomic.Bool
	// failing is set while frames cannot be sent, so that it is logged once.
	failing atomic.Bool
}

// listen opens the socket of an interface. It answers nothing before set and serve are called.
func listen(l link, log *slog.Logger) (*responder, error) {
	none, err := filter(nil)
	if err != nil {
		return nil, fmt.Errorf("assemble the ARP filter: %w", err)
	}
	ifi := &net.Interface{Index: l.index, Name: l.name, HardwareAddr: l.mac[:]}
	conn, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, &packet.Config{Filter: none})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s (it needs CAP_NET_RAW): %w", l.name, err)
	}
	r := &responder{link: l, conn: conn, log: log.With("interface", l.name)}
	r.owned.Store(&addrSet{})
	return r, nil
}

// set replaces the addresses that are answered for. After it returned no other address is.
func (r *responder) set(addrs addrSet) error {
	if maps.Equal(addrs, *r.owned.Load()) {
		return nil
	}
	prog, err := filter(slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare))
	if err != nil {
		return fmt.Errorf("assemble the ARP filter of %s: %w", r.link.name, err)
	}
	r.owned.Store(&addrs)
	if err := r.conn.SetBPF(prog); err != nil {
		r.broken.Store(true) // the filter still is that of other addresses
		return fmt.Errorf("attach the ARP filter of %s: %w", r.link.name, err)
	}
	return nil
}

func (r *responder) owns(a netip.Addr) bool {
	_, ok := (*r.owned.Load())[a]
	return ok
}

// serve answers until the socket is closed or breaks; then lost is called if it was not closed by us. An interface that
// goes down ends nothing: the socket works again when it comes up.
func (r *responder) serve(lost func()) {
	buf := make([]byte, 128)
	for {
		n, _, err := r.conn.ReadFrom(buf)
		switch {
		case r.closed.Load():
			return
		case errors.Is(err, unix.ENETDOWN):
			lost()
			continue
		case err != nil:
			r.broken.Store(true)
			r.log.Warn("cannot read ARP requests; the socket is opened again", "error", err)
			lost()
			return
		}
		f, err := parse(buf[:n])
		if err != nil {
			continue
		}
		if reply, ok := answer(f, r.link.mac, r.owns); ok {
			r.send(reply)
		}
	}
}

// announce implements station.
func (r *responder) announce(addr netip.Addr, both bool) {
	r.send(gratuitousRequest(r.link.mac, addr))
	if both {
		r.send(gratuitousReply(r.link.mac, addr))
	}
}

func (r *responder) send(f frame) {
	_, err := r.conn.WriteTo(f.bytes(), &packet.Addr{HardwareAddr: f.dst[:]})
	if err == nil {
		r.failing.Store(false)
		return
	}
	if !r.closed.Load() && !r.failing.Swap(true) {
		r.log.Warn("cannot send ARP", "address", f.senderIP, "error", err)
	}
}

func (r *responder) close() {
	r.closed.Store(true)
	_ = r.conn.Close()
}
