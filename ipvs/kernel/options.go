package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// The socket options of IPVS (include/uapi/linux/ip_vs.h) support only IPv4. Reading through them costs one system call
// where netlink takes three, and copies less.
const (
	getInfo  = 64 + 1024 + 64 + 1
	getDests = getInfo + 3
)

// optionsFit reports whether the structures below have the kernel's layout: the 64-bit one.
const optionsFit = unsafe.Sizeof(uintptr(0)) == 8

// Layout of struct ip_vs_get_dests and struct ip_vs_dest_entry.
const (
	destsHeader = 24
	destsRoom   = 16
	destEntry   = 96

	entryPort    = 4
	entryForward = 8
	entryWeight  = 12
)

// infoSize is the size of struct ip_vs_getinfo: version, size of the connection table, number of virtual servers.
const infoSize = 12

// destsMost limits the size of one response.
const destsMost = 1 << 20

// options returns the real servers of an IPv4 virtual server.
func (c *conn) options(key ipvs.Key) (map[netip.AddrPort]ipvs.RealServer, error) {
	for room := 32; room <= destsMost; room *= 4 {
		size := destsHeader + room*destEntry
		if len(c.in) < size {
			c.in = make([]byte, size)
		}
		b := c.in[:size]
		clear(b)
		binary.NativeEndian.PutUint16(b, uint16(key.Protocol))
		addr := key.Addr.As4()
		copy(b[4:], addr[:])
		binary.BigEndian.PutUint16(b[8:], key.Port)
		binary.NativeEndian.PutUint32(b[destsRoom:], uint32(room))
		if err := c.getOption(getDests, b); err != nil {
			return nil, err
		}
		// The kernel does not return the number of entries; unused ones have no address.
		reals := map[netip.AddrPort]ipvs.RealServer{}
		for entry := b[destsHeader:]; len(entry) > 0; entry = entry[destEntry:] {
			if binary.NativeEndian.Uint32(entry) == 0 {
				return reals, nil
			}
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte(entry)), binary.BigEndian.Uint16(entry[entryPort:]))
			reals[at] = ipvs.RealServer{
				Weight:  binary.NativeEndian.Uint32(entry[entryWeight:]),
				Forward: ipvs.Forward(binary.NativeEndian.Uint32(entry[entryForward:]) & forwardMask),
			}
		}
	}
	return nil, fmt.Errorf("more than %d real servers", destsMost)
}

// CountIPv4 returns the number of IPv4 virtual servers in the namespace, of any program, with or without a firewall
// mark. The kernel does not count those of IPv6. It costs one system call, independent of their number. See also
// [Kernel.Has].
func (k *Kernel) CountIPv4() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := make([]byte, infoSize)
	if err := k.conn.getOption(getInfo, b); err != nil {
		return 0, fmt.Errorf("count virtual servers: %w", explain(err))
	}
	return int(binary.NativeEndian.Uint32(b[8:])), nil
}

// Has reports whether a virtual server exists. It costs one request, independent of the number of virtual servers.
func (k *Kernel) Has(key ipvs.Key) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.get(key)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find %v: %w", key, err)
	}
	return true, nil
}

func (c *conn) getOption(option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(c.option), unix.SOL_IP, uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
