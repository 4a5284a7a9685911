package bfd

import (
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rebind is how often it is asked at most on which interface a single-hop peer is.
const rebind = time.Second

// routed returns the index of the interface on which the peer is by the kernel's routes, 0 if there is none or the
// kernel reports none. Another host on another interface, as a Pod of this node with CAP_NET_RAW, may send with the
// peer's address and a TTL of 255, too.
func (k Key) routed() int {
	o := &netlink.RouteGetOptions{Oif: k.Interface}
	if k.Local.IsValid() {
		o.SrcAddr = k.Local.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(k.Peer.AsSlice(), o)
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}

// getsockopt reads an option into b and returns its length.
func getsockopt(fd, level, name int, b []byte) (int, error) {
	length := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}
