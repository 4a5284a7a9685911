package reach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/neighbor"
	"github.com/ironlb/ironlb/speaker/view"
)

// echo probes by ICMP or ICMPv6 echo, on a raw socket of one family. It needs CAP_NET_RAW.
type echo struct {
	fd    int
	v6    bool
	token uint64 // of this process: answers to other processes are dropped
	buf   []byte
}

// neighbors probes by ARP and neighbor discovery.
type neighbors struct {
	*neighbor.Table
	// pending are the pending probes by ID. A host may be asked for two reasons.
	pending map[uint64]pendingNeighbor
	// accepts reports whether an address may have that hardware address: a proxy ARP host answers for other hosts.
	accepts func(addr netip.Addr, mac [6]byte) bool
	// silent counts consecutive unanswered probes.
	silent map[netip.Addr]int
}

// pendingNeighbor is a pending probe on an interface.
type pendingNeighbor struct {
	Probe
	at    time.Time
	index int
}

// receiveBuffer holds the answers of a few thousand nodes.
const receiveBuffer = 1 << 20

// openEcho opens the socket in the network namespace of the calling thread. It returns nil if the kernel has no IPv6.
func openEcho(v6 bool, token uint64) (*echo, error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if v6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if v6 && errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open a raw socket for ICMP echo (the process needs CAP_NET_RAW): %w", err)
	}
	e := &echo{fd: fd, v6: v6, token: token, buf: make([]byte, 1500)}
	if err := errors.Join(e.filter(), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)); err != nil {
		e.close()
		return nil, fmt.Errorf("prepare the raw socket for ICMP echo: %w", err)
	}
	return e, nil
}

// filter makes the kernel deliver only echo replies (raw(7); RFC 3542 section 3.2).
func (e *echo) filter() error {
	if e.v6 {
		var f unix.ICMPv6Filter
		for i := range f.Data {
			f.Data[i] = ^uint32(0)
		}
		f.Data[ipv6.ICMPTypeEchoReply>>5] &^= 1 << (ipv6.ICMPTypeEchoReply & 31)
		return unix.SetsockoptICMPv6Filter(e.fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &f)
	}
	const icmpFilter = 1 // ICMP_FILTER (include/uapi/linux/icmp.h)
	return unix.SetsockoptInt(e.fd, unix.SOL_RAW, icmpFilter, ^(1 << ipv4.ICMPTypeEchoReply))
}

func (e *echo) close() { unix.Close(e.fd) }

// send sends an echo request, and reports whether it was sent. An unreachable host is no error: the probe stays
// unanswered.
func (e *echo) send(q Probe) (sent bool, err error) {
	message := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: e.body(q.ID)}
	var to unix.Sockaddr
	if e.v6 {
		message.Type, to = ipv6.ICMPTypeEchoRequest, &unix.SockaddrInet6{Addr: q.Addr.As16()}
	} else {
		to = &unix.SockaddrInet4{Addr: q.Addr.As4()}
	}
	data, err := message.Marshal(nil) // the kernel completes the checksum of ICMPv6
	if err != nil {
		return false, err
	}
	switch err := unix.Sendto(e.fd, data, 0, to); err {
	case nil, unix.EHOSTUNREACH, unix.EHOSTDOWN:
		return true, nil
	case unix.ENETUNREACH, unix.ENETDOWN, unix.EAGAIN, unix.ENOBUFS, unix.EADDRNOTAVAIL: // a temporary local fault
		return false, nil
	default:
		return false, fmt.Errorf("send an ICMP echo request to %v: %w", q.Addr, err)
	}
}

// body contains the token and the ID, so that no host can answer a probe that it has not received.
func (e *echo) body(id uint64) *icmp.Echo {
	data := binary.BigEndian.AppendUint64(nil, e.token)
	return &icmp.Echo{ID: int(uint16(e.token)), Seq: int(uint16(id)), Data: binary.BigEndian.AppendUint64(data, id)}
}

// answers calls each for every probe with an answer to read.
func (e *echo) answers(each func(at time.Time, q Probe)) error {
	for {
		n, from, err := unix.Recvfrom(e.fd, e.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("receive ICMP echo replies: %w", err)
		}
		if id, ok := e.parse(e.buf[:n]); ok {
			each(time.Now(), Probe{Target: Target{Addr: addrOf(from), By: view.WitnessEcho}, ID: id})
		}
	}
}

// parse returns the ID of the probe that an echo reply answers. A raw IPv4 socket delivers the IP header, too.
func (e *echo) parse(data []byte) (id uint64, ok bool) {
	protocol := unix.IPPROTO_ICMPV6
	if !e.v6 {
		protocol = unix.IPPROTO_ICMP
		if len(data) < ipv4.HeaderLen || int(data[0]&0xf)*4 > len(data) {
			return 0, false
		}
		data = data[int(data[0]&0xf)*4:]
	}
	m, err := icmp.ParseMessage(protocol, data)
	if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
		return 0, false
	}
	body, ok := m.Body.(*icmp.Echo)
	if !ok || len(body.Data) != 16 || binary.BigEndian.Uint64(body.Data) != e.token {
		return 0, false
	}
	return binary.BigEndian.Uint64(body.Data[8:]), true
}

func addrOf(from unix.Sockaddr) netip.Addr {
	switch s := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(s.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(s.Addr)
	}
	return netip.Addr{}
}

// maxForcedProbes is how many consecutive probes keep an entry from failing. After that the kernel's own probes may
// end, so that senders get an error, and a node that returns with another hardware address is found.
const maxForcedProbes = 20

func openNeighbors(accepts func(netip.Addr, [6]byte) bool) (*neighbors, error) {
	table, err := neighbor.Open()
	if err != nil {
		return nil, err
	}
	return &neighbors{Table: table, pending: map[uint64]pendingNeighbor{}, accepts: accepts, silent: map[netip.Addr]int{}}, nil
}

// send makes the kernel probe a neighbor at once, and reports whether it did. It does not while there is no route to
// the address. An address behind a router, or with a static entry, never answers. One without an address in its entry
// is asked by the echo request.
func (k *neighbors) send(q Probe) (sent bool, err error) {
	index, direct, ok := k.Route(q.Addr)
	if !ok || !direct {
		return ok, nil
	}
	have, err := k.Entry(index, q.Addr)
	if err != nil || neighbor.Static(have) {
		return err == nil, err
	}
	at := time.Now()
	k.silent[q.Addr]++
	if have == nil || have.State != unix.NUD_PROBE || k.silent[q.Addr] <= maxForcedProbes { // else the kernel is probing
		if _, err := k.Table.Probe(index, q.Addr, have, [6]byte{}); err != nil {
			return false, err
		}
	}
	k.pending[q.ID] = pendingNeighbor{Probe: q, at: at, index: index}
	return true, nil
}

// answers calls each for every answered probe.
func (k *neighbors) answers(each func(at time.Time, q Probe)) error {
	var errs []error
	entries := map[netip.Addr]*netlink.Neigh{} // a node or gateway is on one interface
	for id, w := range k.pending {
		now := time.Now()
		have, is := entries[w.Addr]
		if !is {
			var err error
			if have, err = k.Entry(w.index, w.Addr); err != nil {
				errs = append(errs, err)
				continue
			}
			entries[w.Addr] = have
		}
		if now.Sub(w.at) > slowest {
			delete(k.pending, id)
		}
		at, ok := neighbor.Answered(have, now, w.at)
		if !ok {
			continue
		}
		delete(k.silent, w.Addr)
		if delete(k.pending, id); k.accepts(w.Addr, [6]byte(have.HardwareAddr)) {
			each(at, w.Probe)
		}
	}
	return errors.Join(errs...)
}
