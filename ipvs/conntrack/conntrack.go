// Package conntrack deletes connection tracking entries of the kernel that misdirect clients of a virtual server:
//
//   - A UDP client that keeps its port would be sent to a deleted endpoint as long as it continues.
//   - A TCP client of a deleted endpoint would wait a quarter of an hour for a response. Without an entry its next
//     packet is answered with a reset (docs/design/data-plane.md, "What ends with a reset").
//   - A TCP client whose SYN went to an endpoint that does not answer would send it there again.
//   - A TCP client whose SYN came before an address became local would be refused for two minutes with that port
//     (nf_conntrack_tcp_timeout_syn_sent): the entry records no translation.
package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// Clean deletes entries of the calling thread's network namespace whose original destination is a virtual server of the
// table, and returns their number. It deletes
//
//   - for UDP, entries answered by anything but a real server with a weight;
//   - for TCP, entries answered by anything but a real server: one with weight 0 drains;
//   - for TCP and SCTP, unanswered entries that lead to no real server with a weight: the client sends its SYN or INIT
//     again, to another one;
//   - for all protocols, untranslated entries.
//
// An SCTP association to a deleted real server stays. SCTP does not drain, so that real server may be alive. If it is
// not, both ends detect that by their own heartbeats (RFC 9260, section 8.3). A virtual server without real servers has
// all its entries deleted, except these. Entries of other destinations and of other zones are never touched.
//
// Call it after the virtual servers and the rules have changed: an entry created meanwhile follows them.
func Clean(ctx context.Context, table ipvs.Table) (int, error) {
	deleted := 0
	var errs []error
	for _, f := range filters(table) {
		if err := ctx.Err(); err != nil {
			return deleted, errors.Join(append(errs, err)...)
		}
		stale, err := list(func(found func([]byte)) error { return dump(f, found) }, table)
		if err != nil {
			errs = append(errs, fmt.Errorf("list conntrack entries of %v: %w", f, explain(err)))
		}
		n, err := remove(stale)
		deleted += n
		if err != nil {
			errs = append(errs, err)
		}
	}
	return deleted, errors.Join(errs...)
}

// stale reports whether an entry of a virtual server with these real servers must be deleted, by the rules of [Clean].
func (e entry) stale(reals map[netip.AddrPort]ipvs.RealServer) bool {
	real, exists := reals[e.from]
	switch {
	case exists && real.Weight > 0:
		return false
	case e.to.Protocol == ipvs.UDP || !e.answered:
		return true
	case exists:
		return false
	}
	return e.to.Protocol == ipvs.TCP || e.untranslated()
}

// untranslated reports whether the original destination answers itself.
func (e entry) untranslated() bool { return e.from == netip.AddrPortFrom(e.to.Addr, e.to.Port) }

// attempts is how often a listing that the kernel reports as interrupted is started.
const attempts = 5

// list returns the entries to delete. An interrupted listing may lack entries or repeat them, so it is restarted. If
// every attempt is interrupted, the entries found last are returned with the error.
func list(dump func(found func(message []byte)) error, table ipvs.Table) (stale []entry, err error) {
	for range attempts {
		stale = stale[:0]
		err = dump(func(message []byte) {
			e, ok := parse(message)
			if !ok {
				return
			}
			if virtual, ours := table[e.to]; ours && e.stale(virtual.RealServers) {
				stale = append(stale, e)
			}
		})
		if !errors.Is(err, unix.EINTR) { // nl.ErrDumpInterrupted is EINTR, too
			break
		}
	}
	return stale, err
}

// dump calls found with each entry that matches the filter. A kernel before 5.8 does not filter, so the caller must.
func dump(f filter, found func(message []byte)) error {
	request := newRequest(f.family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	for _, a := range f.attributes() {
		request.AddData(a)
	}
	return request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		found(message)
		return true
	})
}

// removeMost is how many entries are deleted with one message. The kernel's responses, each accounted with less than 1
// KiB, fit into a socket's buffer (net.core.rmem_default).
const removeMost = 64

// remove deletes entries, each by its tuple and number, so that a successor is not deleted. It returns the number
// of deleted entries. An entry that has expired meanwhile is not an error.
func remove(entries []entry) (deleted int, err error) {
	if len(entries) == 0 {
		return 0, nil
	}
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket to delete conntrack entries: %w", err)
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return 0, fmt.Errorf("set the time-out of a netlink socket: %w", err)
	}
	var errs []error
	for some := range slices.Chunk(entries, removeMost) {
		n, err := removeSome(socket, some)
		if deleted += n; err != nil {
			errs = append(errs, err)
		}
	}
	return deleted, errors.Join(errs...)
}

// removeSome deletes entries with one message. The kernel processes each request in it independently of the others.
func removeSome(socket *nl.NetlinkSocket, entries []entry) (deleted int, err error) {
	var message []byte
	waiting := make(map[uint32]entry, len(entries))
	for _, e := range entries {
		request := newRequest(familyOf(e.to.Addr), nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		request.AddRawData(e.identity)
		message = append(message, request.Serialize()...)
		waiting[request.Seq] = e
	}
	if err := unix.Sendto(socket.GetFd(), message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("delete conntrack entries: %w", explain(err))
	}
	var errs []error
	for len(waiting) > 0 {
		answers, _, err := socket.Receive()
		if err != nil {
			return deleted, errors.Join(append(errs, fmt.Errorf("delete conntrack entries: %w", err))...)
		}
		for _, m := range answers {
			e, ours := waiting[m.Header.Seq]
			if !ours || m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			delete(waiting, m.Header.Seq)
			switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data))); errno {
			case 0:
				deleted++
			case unix.ENOENT: // it has expired
			default:
				errs = append(errs, fmt.Errorf("delete the conntrack entry of %v answered by %v: %w", e.to, e.from, explain(errno)))
			}
		}
	}
	return deleted, errors.Join(errs...)
}

func newRequest(family uint8, command, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|command, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return request
}

// explain adds the remediation to an error.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("give the process CAP_NET_ADMIN in the network namespace: %w", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf(`load the module nf_conntrack_netlink ("modprobe nf_conntrack_netlink"): %w`, err)
	case errors.Is(err, unix.EINTR):
		return fmt.Errorf("interrupted %d times by changes: %w", attempts, err)
	}
	return err
}
