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
	getInfo    = 64 + 1024 + 64 + 1
	getService = getInfo + 2
	getDests   = getInfo + 3
)

// optionsFit reports whether the structures below have the kernel's layout: the 64-bit one.
const optionsFit = unsafe.Sizeof(uintptr(0)) == 8

// Layout of struct ip_vs_service_entry, whose protocol, address and port are those of the other structures, too.
const (
	entrySize      = 104
	entryAddr      = 4
	entryPort      = 8
	entryScheduler = 16
	entryFlags     = 32
	entryTimeout   = 36
)

// Layout of struct ip_vs_get_dests and struct ip_vs_dest_entry.
const (
	destsHeader = 24
	destsRoom   = 16
	destEntry   = 96

	destEntryPort    = 4
	destEntryForward = 8
	destEntryWeight  = 12
)

// infoSize is the size of struct ip_vs_getinfo: version, size of the connection table, number of virtual servers.
const infoSize = 12

// destsMost limits the size of one response.
const destsMost = 1 << 20

// putKey writes an IPv4 virtual server to a structure.
func putKey(b []byte, key ipvs.Key) {
	binary.NativeEndian.PutUint16(b, uint16(key.Protocol))
	addr := key.Addr.As4()
	copy(b[entryAddr:], addr[:])
	binary.BigEndian.PutUint16(b[entryPort:], key.Port)
}

// settingsOption returns the settings of an IPv4 virtual server; the error is ESRCH if there is none.
func (c *conn) settingsOption(key ipvs.Key) (ipvs.Settings, error) {
	var b [entrySize]byte
	putKey(b[:], key)
	if err := c.getOption(getService, b[:]); err != nil {
		return ipvs.Settings{}, err
	}
	return persistent(ipvs.Settings{
		Scheduler: unix.ByteSliceToString(b[entryScheduler:entryFlags]),
		Flags:     ipvs.Flags(binary.NativeEndian.Uint32(b[entryFlags:])) &^ ipvs.Hashed,
		Timeout:   binary.NativeEndian.Uint32(b[entryTimeout:]),
	}), nil
}

// destsOption returns the real servers of an IPv4 virtual server. expected is their likely number.
func (c *conn) destsOption(key ipvs.Key, expected int) (map[netip.AddrPort]ipvs.RealServer, error) {
	for room := expected + 1; room <= destsMost; room *= 4 {
		size := destsHeader + room*destEntry
		if len(c.in) < size {
			c.in = make([]byte, size)
		}
		b := c.in[:size]
		clear(b)
		putKey(b, key)
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
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte(entry)), binary.BigEndian.Uint16(entry[destEntryPort:]))
			reals[at] = ipvs.RealServer{
				Weight:  binary.NativeEndian.Uint32(entry[destEntryWeight:]),
				Forward: ipvs.Forward(binary.NativeEndian.Uint32(entry[destEntryForward:]) & forwardMask),
			}
		}
	}
	return nil, fmt.Errorf("more than %d real servers", destsMost)
}

// Count returns the number of IPv4 virtual servers in the namespace, of any program, with or without a firewall mark.
// The kernel does not count those of IPv6. It costs one system call, independent of their number.
func (k *Kernel) Count() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := make([]byte, infoSize)
	if err := k.conn.getOption(getInfo, b); err != nil {
		return 0, fmt.Errorf("count virtual servers: %w", explain(err))
	}
	return int(binary.NativeEndian.Uint32(b[8:])), nil
}

// Same reports whether a virtual server exists with exactly these settings and real servers. It costs two requests,
// independent of the number of virtual servers.
func (k *Kernel) Same(key ipvs.Key, want ipvs.VirtualServer) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	settings, err := k.conn.settings(key)
	switch {
	case errors.Is(err, unix.ESRCH):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find %v: %w", key, explain(err))
	}
	reals, err := k.reals(key, len(want.RealServers))
	if err != nil {
		return false, fmt.Errorf("list real servers of %v: %w", key, err)
	}
	return want.Equal(ipvs.VirtualServer{Settings: settings, RealServers: reals}), nil
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
