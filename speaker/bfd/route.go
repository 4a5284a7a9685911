package bfd

import (
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rebind is the minimum interval between lookups of a single-hop peer's interface.
const rebind = time.Second

// routed returns the index of the peer's interface: that of its zone, or else by the kernel's routes; 0 if there is
// none or the kernel reports none. Another host on another interface, such as a Pod of this node with CAP_NET_RAW, may
// also send with the peer's address and a TTL of 255.
func (k Key) routed() int {
	if k.Interface != "" {
		return indexOf(k.Interface)
	}
	o := &netlink.RouteGetOptions{}
	if k.Local.IsValid() {
		o.SrcAddr = k.Local.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(k.Peer.AsSlice(), o)
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}

// indexOf returns the index of an interface, 0 if it does not exist (netdevice(7)): netlink would list its full state.
func indexOf(name string) int {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return 0
	}
	return int(request.Uint32())
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
