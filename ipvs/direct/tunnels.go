package direct

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// Device1 and Device2 are the names of the tunnels: to the node of a slot, and to the node that had the slot before.
const (
	Device1 = devicePrefix + "1"
	Device2 = devicePrefix + "2"

	devicePrefix = "ironlb-t"
)

var devices = [numTiers]string{first: Device1, second: Device2}

// tunnels are the known devices and their entries.
type tunnels struct {
	self  netip.Addr
	nodes []netip.Addr
	index [numTiers]int
	// has6 is set if the devices have IPv6.
	has6    bool
	entries map[entry]struct{}
	// obsolete are entries to delete when no rule refers to them any more.
	obsolete map[entry]struct{}
	mtu      int
	// underlay are the interfaces on which tunnel packets leave.
	underlay map[int]struct{}
}

// entry is a neighbor of a tunnel, or a forwarding entry of the device.
type entry struct {
	tier int
	fdb  bool
	addr netip.Addr
	mac  [6]byte
}

// hardwareAddr returns the address of a node's tunnels. A frame with the receiver's own address as its source would be
// dropped, so each node has another one.
func hardwareAddr(node netip.Addr) (mac [6]byte) {
	if node.Is4() {
		raw := node.As4()
		mac[0], mac[1] = 0x02, 0x4c
		copy(mac[2:], raw[:])
		return mac
	}
	hash := fnv.New64a()
	raw := node.As16()
	hash.Write(raw[:])
	copy(mac[:], hash.Sum(nil))
	mac[0] = 0x06 // locally administered, and none of IPv4
	return mac
}

// entriesOf returns the entries of the tunnels for some nodes; numbers are their indices.
func (t *tunnels) entriesOf(into map[entry]struct{}, numbers []int, nodes []netip.Addr) {
	for _, i := range numbers {
		if nodes[i] == t.self || !nodes[i].IsValid() {
			continue
		}
		mac := hardwareAddr(nodes[i])
		for tier := range devices {
			into[entry{tier: tier, fdb: true, addr: nodes[i], mac: mac}] = struct{}{}
			into[entry{tier: tier, addr: gateway4(uint16(i)), mac: mac}] = struct{}{}
			if t.has6 {
				into[entry{tier: tier, addr: gateway6(uint16(i)), mac: mac}] = struct{}{}
			}
		}
	}
}

// sources returns the addresses from which the table of a family accepts packets of the tunnels.
func (t *tunnels) sources(want ipvs.Direct, family int) map[netip.Addr]struct{} {
	sources := make(map[netip.Addr]struct{})
	if familyOf(want.Self) != family {
		return sources
	}
	for _, addr := range want.Nodes {
		if addr.IsValid() && addr != want.Self {
			sources[addr] = struct{}{}
		}
	}
	return sources
}

// ensure creates and corrects the tunnels, and adds the entries of new nodes. Without full it relies on the known
// state.
func (t *tunnels) ensure(d *Driver, want ipvs.Direct, full bool) (frame, error) {
	if !full && want.Self == t.self && slices.Equal(want.Nodes, t.nodes) {
		return d.frame, nil
	}
	full = full || want.Self != t.self
	added := make([]int, 0, len(want.Nodes))
	for i, addr := range want.Nodes {
		if full || i >= len(t.nodes) || t.nodes[i] != addr {
			added = append(added, i)
		}
	}
	if full {
		*t = tunnels{self: want.Self, has6: hasIPv6()}
	}
	if err := t.measure(d, want, added); err != nil {
		return frame{}, err
	}
	if err := t.devices(d); err != nil {
		return frame{}, err
	}
	if full {
		var err error
		if t.entries, err = t.list(d); err != nil {
			return frame{}, err
		}
	}
	if err := t.add(d, want, added); err != nil {
		return frame{}, err
	}
	t.nodes = slices.Clone(want.Nodes)
	return frame{self: want.Self, port: d.cfg.Port, mtu: t.mtu, devices: t.index}, nil
}

// add sets the missing entries, and finds the obsolete ones.
func (t *tunnels) add(d *Driver, want ipvs.Direct, added []int) error {
	wanted := make(map[entry]struct{})
	t.entriesOf(wanted, added, want.Nodes)
	for e := range wanted {
		if _, has := t.entries[e]; has {
			continue
		}
		if err := d.link.NeighSet(t.neighbor(e)); err != nil {
			return fmt.Errorf("add %v: %w", e, err)
		}
		t.entries[e] = struct{}{}
	}
	all := make([]int, len(want.Nodes))
	for i := range all {
		all[i] = i
	}
	clear(wanted)
	t.entriesOf(wanted, all, want.Nodes)
	t.obsolete = make(map[entry]struct{})
	for e := range t.entries {
		if _, is := wanted[e]; !is {
			t.obsolete[e] = struct{}{}
		}
	}
	return nil
}

// prune deletes the obsolete entries. One of a neighbor that has another hardware address now is replaced already.
func (t *tunnels) prune(d *Driver) error {
	for e := range t.obsolete {
		delete(t.entries, e)
		if !e.fdb && t.replaced(e) {
			continue
		}
		if err := d.link.NeighDel(t.neighbor(e)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete %v: %w", e, err)
		}
	}
	t.obsolete = nil
	return nil
}

func (t *tunnels) replaced(e entry) bool {
	peer, ok := peerOf(e.addr)
	if !ok || int(peer) >= len(t.nodes) || !t.nodes[peer].IsValid() {
		return false
	}
	e.mac = hardwareAddr(t.nodes[peer])
	_, has := t.entries[e]
	return has
}

func (t *tunnels) neighbor(e entry) *netlink.Neigh {
	n := &netlink.Neigh{
		LinkIndex: t.index[e.tier], State: unix.NUD_PERMANENT, IP: e.addr.AsSlice(), HardwareAddr: e.mac[:],
	}
	if e.fdb {
		n.Family, n.Flags = unix.AF_BRIDGE, unix.NTF_SELF
	}
	return n
}

func (e entry) String() string {
	kind := "neighbor"
	if e.fdb {
		kind = "forwarding entry"
	}
	return fmt.Sprintf("%s %v lladdr %v dev %s", kind, e.addr, net.HardwareAddr(e.mac[:]), devices[e.tier])
}

// list returns the entries of the devices.
func (t *tunnels) list(d *Driver) (map[entry]struct{}, error) {
	entries := make(map[entry]struct{})
	for tier, index := range t.index {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			found, err := complete(func() ([]netlink.Neigh, error) { return d.link.NeighList(index, family) })
			if err != nil {
				return nil, fmt.Errorf("list the neighbors of %s: %w", devices[tier], err)
			}
			for _, n := range found {
				addr, ok := netip.AddrFromSlice(n.IP)
				if !ok || n.State&unix.NUD_PERMANENT == 0 || len(n.HardwareAddr) != 6 {
					continue // the kernel's own, for multicast
				}
				entries[entry{tier: tier, fdb: family == unix.AF_BRIDGE, addr: addr.Unmap(), mac: [6]byte(n.HardwareAddr)}] = struct{}{}
			}
		}
	}
	return entries, nil
}

// complete repeats a dump that a concurrent change interrupted.
func complete[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 5
	for range tries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

// measure sets the MTU to what fits the routes to all nodes.
func (t *tunnels) measure(d *Driver, want ipvs.Direct, added []int) error {
	if d.cfg.MTU != 0 {
		t.mtu = d.cfg.MTU
		return nil
	}
	overhead := families[familyOf(want.Self)].vxlan
	least, links := 0, make(map[int]int)
	if t.underlay == nil {
		t.underlay = make(map[int]struct{})
	}
	for _, i := range added {
		if addr := want.Nodes[i]; addr.IsValid() && addr != want.Self {
			n, err := t.pathMTU(d, addr, links)
			if err != nil {
				return err
			}
			if n != 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	switch {
	case least != 0 && (t.mtu == 0 || least-overhead < t.mtu):
		t.mtu = least - overhead
	case t.mtu == 0:
		t.mtu = 1500 - overhead
	}
	return nil
}

// pathMTU returns the MTU of the route to a node, 0 without a route.
func (t *tunnels) pathMTU(d *Driver, addr netip.Addr, links map[int]int) (int, error) {
	routes, err := d.link.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, nil // no route yet; the packets are lost until there is one
	}
	index := routes[0].LinkIndex
	if _, known := links[index]; !known {
		link, err := d.link.LinkByIndex(index)
		if err != nil {
			return 0, fmt.Errorf("read the interface of the route to %v: %w", addr, err)
		}
		links[index] = link.Attrs().MTU
		t.underlay[index] = struct{}{}
	}
	if routes[0].MTU != 0 {
		return min(routes[0].MTU, links[index]), nil
	}
	return links[index], nil
}

// intact reports whether the devices and their entries are as known. It lists them only after an event.
func (t *tunnels) intact(d *Driver) (bool, error) {
	if t.index[first] == 0 {
		return true, nil
	}
	if t.has6 != hasIPv6() {
		return false, nil
	}
	for tier := range devices {
		if !sysctlsMet(tier, t.has6) {
			return false, nil
		}
	}
	changed, err := d.events.Changed(func(m syscall.NetlinkMessage) bool {
		index, ok := routewatch.Interface(m)
		_, under := t.underlay[index]
		return ok && (under || slices.Contains(t.index[:], index))
	})
	if err != nil || !changed {
		return err == nil, err
	}
	again := tunnels{self: t.self, nodes: t.nodes, index: t.index}
	all := make([]int, len(t.nodes))
	for i := range all {
		all[i] = i
	}
	if err := again.measure(d, ipvs.Direct{Self: t.self, Nodes: t.nodes}, all); err != nil || again.mtu != t.mtu {
		return false, err
	}
	for tier := range devices {
		if !t.deviceIntact(d, tier) {
			return false, nil
		}
	}
	entries, err := t.list(d)
	return err == nil && maps.Equal(entries, t.entries), err
}
