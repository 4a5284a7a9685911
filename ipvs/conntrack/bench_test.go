package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// established returns a request that creates the entry of an established TCP connection.
func established(client, to, from netip.AddrPort) []byte {
	return establishedAs(tupleOf(ipvs.TCP, nl.CTA_TUPLE_ORIG, client, to), tupleOf(ipvs.TCP, nl.CTA_TUPLE_REPLY, from, client))
}

// establishedAs is established with these tuples and more attributes.
func establishedAs(orig, reply *nl.RtAttr, more ...*nl.RtAttr) []byte {
	const (
		ctaProtoInfo, ctaTimeout = 4, 7
		stateEstablished         = 3 // enum tcp_conntrack
		assured, confirmed       = 1 << 2, 1 << 3
	)
	request := newRequest(unix.AF_INET, nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE)
	for _, a := range append([]*nl.RtAttr{orig, reply}, more...) {
		request.AddData(a)
	}
	request.AddData(nl.NewRtAttr(ctaStatus, binary.BigEndian.AppendUint32(nil, statusSeenReply|assured|confirmed)))
	request.AddData(nl.NewRtAttr(ctaTimeout, binary.BigEndian.AppendUint32(nil, 3600)))
	info := nl.NewRtAttr(unix.NLA_F_NESTED|ctaProtoInfo, nil)
	state := info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil)
	state.AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{stateEstablished})
	request.AddData(info)
	return request.Serialize()
}

// establish creates entries in the namespace of the calling thread, many with one message.
func establish(n int, entry func(i int) []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var batch []byte
	for i := range n {
		if batch = append(batch, entry(i)...); len(batch) < 1<<15 && i < n-1 {
			continue
		}
		if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("make conntrack entries: %w", err)
		}
		batch = batch[:0]
	}
	return nil
}

// BenchmarkClean cleans a table of 100,000 connections to 20 virtual servers of two real servers each. 1,000 of them
// lead to a deleted real server: of one virtual server, or of all.
func BenchmarkClean(b *testing.B) {
	const entries, servers, toGo = 100_000, 20, 1000
	client := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i / 50_000)}), uint16(10_000+i%50_000))
	}
	virtual := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i % servers)}), 80)
	}
	pod := func(i, n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(3*(i%servers) + n)}), 8080)
	}
	table := ipvs.Table{}
	for i := range servers {
		table[ipvs.Key{Addr: virtual(i).Addr(), Protocol: ipvs.TCP, Port: 80}] = ipvs.VirtualServer{
			RealServers: map[netip.AddrPort]ipvs.RealServer{pod(i, 0): {Weight: 1}, pod(i, 1): {}},
		}
	}
	one := ipvs.Key{Addr: virtual(0).Addr(), Protocol: ipvs.TCP, Port: 80}
	for _, c := range []struct {
		name string
		gone func(i int) int // index of the virtual server
		want ipvs.Table
	}{
		{"one of 20", func(int) int { return 0 }, ipvs.Table{one: table[one]}},
		{"all of 20", func(i int) int { return i }, table},
	} {
		b.Run(c.name, func(b *testing.B) {
			node := netspace.New(b)
			node.Must(b, func() error {
				return establish(entries-toGo, func(i int) []byte {
					return established(client(i), virtual(i), pod(i, i/servers%2))
				})
			})
			for b.Loop() {
				b.StopTimer()
				node.Must(b, func() error {
					return establish(toGo, func(i int) []byte {
						return established(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 9}), uint16(20_000+i)),
							virtual(c.gone(i)), pod(c.gone(i), 2))
					})
				})
				b.StartTimer()
				node.Must(b, func() error {
					if n, err := Clean(context.Background(), c.want); err != nil || n != toGo {
						b.Fatalf("%d deleted, %v; want %d", n, err, toGo)
					}
					return nil
				})
			}
		})
	}
}
