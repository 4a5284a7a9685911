package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/link/dump"
)

// Retain makes the kernel itself answer ARP and neighbor discovery for our addresses, each on its interfaces, until
// Release or the end of the lifetime, even if this process ends. The lifetime counts in full seconds. If it fails,
// nothing is retained.
func (l *Link) Retain(addrs map[netip.Addr][]string, lifetime time.Duration) error {
	devices, done := map[string]netlink.Link{}, map[netip.Addr]struct{}{}
	for addr, names := range addrs {
		done[addr] = struct{}{}
		for _, name := range names {
			if err := l.retainOn(addr, name, lifetime, devices); err != nil {
				return errors.Join(fmt.Errorf("retain %v on %s: %w", addr, name, err), l.Release(done))
			}
		}
	}
	return nil
}

func (l *Link) retainOn(addr netip.Addr, name string, lifetime time.Duration, devices map[string]netlink.Link) (err error) {
	if devices[name] == nil {
		if devices[name], err = l.handle.LinkByName(name); err != nil {
			return err
		}
	}
	if addr.Is4() {
		if err := answersHost(name); err != nil {
			return err
		}
	}
	if err := l.handle.AddrAdd(devices[name], retained(addr, lifetime)); !errors.Is(err, unix.EEXIST) {
		return err
	}
	// Another program's address must not expire with our lifetime.
	ours, err := l.Retained()
	if err == nil && !contains(ours, addr) {
		err = ErrForeign
	}
	if err != nil {
		return err
	}
	return l.handle.AddrReplace(devices[name], retained(addr, lifetime))
}

// answersHost fails if arp_ignore prevents the kernel from answering for an interface address without a subnet: the
// greater value of the interface and of "all" applies (Documentation/networking/ip-sysctl.rst).
func answersHost(name string) error {
	for _, of := range []string{name, "all"} {
		data, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf", of, "arp_ignore"))
		if err != nil {
			return err
		}
		if value, err := strconv.Atoi(strings.TrimSpace(string(data))); err != nil || value > 1 {
			return fmt.Errorf("arp_ignore of %s is %s: set it to 0 or 1", of, strings.TrimSpace(string(data)))
		}
	}
	return nil
}

// retained is an address that the kernel does not use as a source if there is another one (preferred lifetime 0; an
// IPv4 /32 comes last). The kernel adds no subnet route for it, and deletes it by itself. Duplicate address detection
// is off, because this node has answered for it all the time.
func retained(addr netip.Addr, lifetime time.Duration) *netlink.Addr {
	a := &netlink.Addr{
		IPNet:    &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		ValidLft: int(lifetime / time.Second),
		Flags:    unix.IFA_F_NOPREFIXROUTE,
	}
	if addr.Is6() {
		a.Flags |= unix.IFA_F_NODAD
	}
	return a
}

// isRetained reports whether an interface's address may be one of Retain. It is one if our local route exists as well.
func isRetained(a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return ones == bits && a.Flags&unix.IFA_F_DEPRECATED != 0 && a.Flags&unix.IFA_F_PERMANENT == 0
}

// Retained returns the addresses for which the kernel answers since Retain, of this process or a previous one.
func (l *Link) Retained() (map[netip.Addr]struct{}, error) {
	addrs, err := l.interfaceAddrs()
	if err != nil {
		return nil, err
	}
	ours, _, err := l.List()
	if err != nil {
		return nil, err
	}
	found := map[netip.Addr]struct{}{}
	for _, a := range addrs {
		if addr := addrOf(a); isRetained(a) && contains(ours, addr) {
			found[addr] = struct{}{}
		}
	}
	return found, nil
}

// Release undoes Retain. An address that is not retained is no error.
func (l *Link) Release(addrs map[netip.Addr]struct{}) error {
	if len(addrs) == 0 {
		return nil
	}
	have, err := l.interfaceAddrs()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range have {
		if !isRetained(a) || !contains(addrs, addrOf(a)) {
			continue
		}
		dev, err := l.handle.LinkByIndex(a.LinkIndex)
		if err == nil {
			err = l.handle.AddrDel(dev, &netlink.Addr{IPNet: a.IPNet})
		}
		var gone netlink.LinkNotFoundError
		if err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.EADDRNOTAVAIL) { // its lifetime had expired
			errs = append(errs, fmt.Errorf("release %v: %w", addrOf(a), err))
		}
	}
	return errors.Join(errs...)
}

// ReleaseAll undoes all of Retain.
func (l *Link) ReleaseAll() error {
	retained, err := l.Retained()
	if err != nil {
		return err
	}
	return l.Release(retained)
}

// interfaceAddrs lists the addresses of all interfaces.
func (l *Link) interfaceAddrs() ([]netlink.Addr, error) {
	addrs, err := dump.Complete(func() ([]netlink.Addr, error) { return l.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of interfaces: %w", err)
	}
	return addrs, nil
}

func addrOf(a netlink.Addr) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.IP)
	return addr.Unmap()
}

func contains[K comparable, V any](m map[K]V, key K) bool { _, ok := m[key]; return ok }
