package link

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// kubeProxyInterface is the interface with the Service addresses of kube-proxy's ipvs mode.
const kubeProxyInterface = "kube-ipvs0"

// HostAddresses returns the node's own addresses, sorted: those of its interfaces, except loopback and link-local ones,
// unusable (also tentative) ones, and Service addresses, which are kube-proxy's or ours. NodePorts are
// served at them.
func (l *Link) HostAddresses() ([]netip.Addr, error) {
	addrs, err := l.interfaceAddrs()
	if err != nil {
		return nil, err
	}
	ours, _, err := l.List()
	if err != nil {
		return nil, err
	}
	foreign := -1
	if dummy, err := l.handle.LinkByName(kubeProxyInterface); err == nil {
		foreign = dummy.Attrs().Index
	}
	var host []netip.Addr
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		_, virtual := ours[addr]
		unusable := a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
		if ok && !virtual && !unusable && a.LinkIndex != foreign && addr.IsGlobalUnicast() {
			host = append(host, addr)
		}
	}
	slices.SortFunc(host, netip.Addr.Compare)
	return slices.Compact(host), nil
}
