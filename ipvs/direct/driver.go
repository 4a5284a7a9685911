// Package direct is the driver of the first tier of directed virtual servers ([ipvs.Direct]): nftables choose the node
// of a connection by a hash and send its packets there through a tunnel. It keeps no state per connection, so any node
// can take over at any time (docs/design/direct.md).
//
// One network namespace gets two vxlan devices, ironlb-t1 and ironlb-t2 (the second chance), with a permanent neighbor
// and a forwarding entry per peer, and the nftables tables ironlb-direct of both families. A filter precedes the
// devices (filterTable). All of these belong to the driver. It writes differences only, also to what an earlier process
// wrote.
package direct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftbatch"
	"github.com/ironlb/ironlb/ipvs/nftopen"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
	"github.com/ironlb/ironlb/ipvs/routewatch"
)

// Reason is the kind of a [Problem].
type Reason string

const (
	// NoCommand: the program nft is missing.
	NoCommand Reason = "NoNFTCommand"
	// NoRules: the kernel or nft does not accept the rules.
	NoRules Reason = "NoNFTRules"
	// NoVXLAN: the kernel has no vxlan devices.
	NoVXLAN Reason = "NoVXLAN"
	// PortTaken: another program or vxlan device uses the UDP port.
	PortTaken Reason = "TunnelPortTaken"
	// NameTaken: an interface of another kind has the name of a tunnel.
	NameTaken Reason = "TunnelNameTaken"
	// MixedFamilies: the addresses of two nodes are of different families, so no tunnel connects them.
	MixedFamilies Reason = "MixedNodeFamilies"
	// NoIPv6: the tunnels of this node cannot have IPv6.
	NoIPv6 Reason = "NoIPv6"
)

// Problem is an error that lasts: the node cannot direct connections. It wraps [ipvs.ErrNoTunnel], or with NoIPv6
// [ipvs.ErrNoTunnelIPv6]. Err has the remediation.
type Problem struct {
	Reason Reason
	Err    error
}

func (p *Problem) Error() string { return fmt.Sprintf("%s: %v", p.Reason, p.Err) }

// Unwrap returns the cause as well.
func (p *Problem) Unwrap() []error {
	if p.Reason == NoIPv6 {
		return []error{ipvs.ErrNoTunnelIPv6, p.Err}
	}
	return []error{ipvs.ErrNoTunnel, p.Err}
}

// TableName is the name of the tables, of the families ip and ip6.
const TableName = "ironlb-direct"

// groups have a notification for each change of the tunnels and of their underlay.
var groups = []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}

// Config are the parameters of a Driver.
type Config struct {
	// Port is the UDP port of the tunnels, the same on all nodes and of no other vxlan device.
	Port uint16
	// MTU of the tunnels; 0 derives it from the routes to the peers.
	MTU int
}

// Driver is the first tier of one network namespace. It is safe for concurrent use.
type Driver struct {
	cfg  Config
	nft  knftables.Interface
	send func(*nftbatch.Batch) error
	link *netlink.Handle
	// filter is the table filterTable.
	filter *nftbatch.Owned

	mu     sync.Mutex
	watch  *nftwatch.Watch
	events *routewatch.Watch // of interfaces, their addresses and neighbors
	// known means that the fields below equal the kernel's content. foreign reports a change by another program since.
	known, foreign bool
	// guarded are the families with a guard of this process.
	guarded [nftwatch.NumFamilies]bool
	frame   frame
	tables  [nftwatch.NumFamilies]table
	tunnels tunnels
	pods    ipvs.PodSources
	// probedIPv4 is set if the last probe found that only IPv6 is missing.
	probedIPv4 bool
}

// New finds the program nft and opens the network namespace of the calling thread, which must be the same for each
// call. It changes nothing. It fails with a [Problem].
func New(cfg Config) (*Driver, error) {
	nft, err := nftopen.Open("", "") // each object names its own table
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, &Problem{NoCommand, errors.New("program nft not found: install the package nftables")}
	case err != nil:
		return nil, &Problem{NoRules, fmt.Errorf("open nftables (needs CAP_NET_ADMIN and nf_tables): %w", err)}
	}
	d := &Driver{cfg: cfg, nft: nft, send: (*nftbatch.Batch).Send}
	if d.watch, err = nftwatch.Open(TableName); err != nil {
		return nil, &Problem{NoRules, err}
	}
	if d.link, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		d.watch.Close()
		return nil, fmt.Errorf("open the route netlink socket: %w", err)
	}
	if d.events, err = routewatch.Open(groups...); err != nil {
		d.watch.Close()
		d.link.Close()
		return nil, err
	}
	if d.filter, err = nftbatch.OpenOwned(filterTable); err != nil {
		d.watch.Close()
		d.link.Close()
		d.events.Close()
		return nil, err
	}
	return d, nil
}

// Close ends the driver. Programmed state stays, except for the filter of the tunnels that precedes the rules.
func (d *Driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.Close()
	d.link.Close()
	d.events.Close()
	d.filter.Close()
}

// MTU returns the MTU of the tunnels, 0 if there are none.
func (d *Driver) MTU() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.frame.mtu
}

// SetPods sets the sources that are cluster-internal, whose packets are not directed. It takes effect with the next
// Apply.
func (d *Driver) SetPods(pods ipvs.PodSources) error {
	for _, p := range pods.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("set the Pods' networks: %w prefix %v", ipvs.ErrInvalid, p)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = ipvs.PodSources{
		Prefixes: ipvs.Disjoint(pods.Prefixes), Interfaces: slices.Sorted(slices.Values(pods.Interfaces)),
	}
	return nil
}

// Apply makes the node direct as wanted. changed are the virtual servers that may differ from the previous Apply, at
// the cost of those; an Apply after an error, a foreign change or a start compares everything. Without virtual servers
// it removes everything.
//
// A virtual server with an invalid slot is not directed; the error names it. The same holds for those of IPv6 where the
// tunnels cannot have IPv6. An error with a [Problem] lasts.
func (d *Driver) Apply(ctx context.Context, want ipvs.Direct, changed []ipvs.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(want.Virtuals) == 0 {
		return d.remove(ctx)
	}
	if err := d.validate(want); err != nil {
		return err
	}
	if _, err := d.check(); err != nil {
		return err
	}
	full := !d.known
	d.known, d.foreign = false, false
	if full || want.Self != d.frame.self {
		if err := d.setFilter(want.Self); err != nil {
			return err
		}
	}
	frame, err := d.tunnels.ensure(d, want, full)
	if err != nil {
		return err
	}
	full = full || frame != d.frame
	d.frame = frame
	invalid, err := d.program(ctx, want, changed, full)
	if err != nil {
		return err
	}
	if err := d.tunnels.prune(d); err != nil {
		return err
	}
	d.known = !d.foreign
	return invalid
}

// validate returns why no tunnels can connect the nodes.
func (d *Driver) validate(want ipvs.Direct) error {
	if !want.Self.IsValid() || len(want.Nodes) > maxPeers {
		return fmt.Errorf("%w nodes: %v among %d", ipvs.ErrInvalid, want.Self, len(want.Nodes))
	}
	for _, addr := range want.Nodes {
		if addr.IsValid() && addr.Is4() != want.Self.Is4() {
			return &Problem{MixedFamilies, fmt.Errorf("no tunnel leads from %v to %v: give all nodes an InternalIP of one family",
				want.Self, addr)}
		}
	}
	return nil
}

// program changes the tables. invalid is the error of virtual servers that are left out.
func (d *Driver) program(ctx context.Context, want ipvs.Direct, changed []ipvs.Key, full bool) (invalid, err error) {
	if full {
		changed = slices.Collect(maps.Keys(want.Virtuals))
	}
	wants, invalid := d.wants(want, changed)
	outer := familyOf(want.Self)
	for _, i := range []int{1 - outer, outer} { // the last one lets packets into the tunnels
		switch {
		case !exists(i):
			continue
		case full || !d.tables[i].exists:
			err = d.syncTable(ctx, i, wants[i])
		default:
			err = d.editTable(ctx, i, wants[i])
		}
		// Also after an error: virtual servers are not to be dropped until it ends. An earlier process may have left one.
		if d.guarded[i] || full {
			err = errors.Join(err, d.unguard(ctx, i))
		}
		if err != nil {
			return nil, fmt.Errorf("program nftables table %s %s: %w", families[i].name, TableName, err)
		}
	}
	return invalid, nil
}

// wants returns the wanted state of each family, with the changed virtual servers. invalid is the error of those that
// cannot be directed.
func (d *Driver) wants(want ipvs.Direct, changed []ipvs.Key) (wants [nftwatch.NumFamilies]wanted, invalid error) {
	for i := range wants {
		wants[i] = wanted{
			virtuals: make(map[ipvs.Key]*[numTiers]content), closed: make(map[ipvs.Key]struct{}),
			nodes: d.tunnels.sources(want, i), pods: d.pods, frame: d.frame,
		}
	}
	peers := newPeers(want)
	var errs []error
	for _, key := range changed {
		virtuals := wants[familyOf(key.Addr)].virtuals
		virtuals[key] = nil
		directed, wanted := want.Virtuals[key]
		if !wanted {
			continue
		}
		contents, err := peers.contents(directed)
		if key.Addr.Is6() && !d.tunnels.has6 {
			err = noIPv6()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("direct %v: %w", key, err))
			continue
		}
		virtuals[key] = &contents
		if directed.Closed {
			wants[familyOf(key.Addr)].closed[key] = struct{}{}
		}
	}
	return wants, errors.Join(errs...)
}

// Check reports whether everything is as the last Apply left it. Without a change on the node it costs some system
// calls.
func (d *Driver) Check(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

func (d *Driver) check() (bool, error) {
	counts, err := d.watch.Count()
	if err != nil && !errors.Is(err, nftwatch.ErrLost) {
		d.known = false
		return false, err
	}
	if err != nil || counts != (nftwatch.Counts{}) {
		d.known = false
	}
	if d.known {
		intact, err := d.tunnels.intact(d)
		d.known = intact && err == nil
		return d.known, err
	}
	return false, nil
}

// Remove deletes the tables and the tunnels. It succeeds if there are none.
func (d *Driver) Remove(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = false
	return d.remove(ctx)
}

func (d *Driver) remove(ctx context.Context) error {
	intact, err := d.check()
	if err != nil {
		return err
	}
	if intact && d.frame == (frame{}) {
		return nil
	}
	d.known, d.foreign = false, false
	if err := d.tunnels.remove(d); err != nil {
		return err
	}
	if err := errors.Join(d.removeTables(ctx), d.removeFilter()); err != nil {
		return err
	}
	d.frame, d.tables, d.tunnels, d.guarded = frame{}, [nftwatch.NumFamilies]table{}, tunnels{}, [nftwatch.NumFamilies]bool{}
	d.known = !d.foreign
	return nil
}

// Probe returns a [Problem] if this node cannot use tunnels to the nodes of want. Where there are none, it adds them
// for a moment, as Apply does: only the kernel knows whether it has vxlan and the port is free. It leaves nothing.
// Without Self the nodes do not matter.
func (d *Driver) Probe(ctx context.Context, want ipvs.Direct) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	exist, err := d.haveTunnels()
	if err != nil {
		return err
	}
	if !exist && !(d.probedIPv4 && !hasIPv6()) { // Apply corrects those that exist
		d.probedIPv4 = false
		if err := d.tryTunnels(ctx, want); err != nil {
			return err
		}
	}
	if d.probedIPv4 = !hasIPv6(); d.probedIPv4 {
		return noIPv6()
	}
	return nil
}

// tryTunnels adds tunnels and removes them.
func (d *Driver) tryTunnels(ctx context.Context, want ipvs.Direct) error {
	if !want.Self.IsValid() {
		want = ipvs.Direct{Self: probeSelf, Nodes: []netip.Addr{probeSelf}}
	}
	if err := d.validate(want); err != nil {
		return err
	}
	if err := d.setFilter(want.Self); err != nil {
		return err
	}
	var t tunnels
	frame, err := t.ensure(d, want, true)
	for i := range families { // rules refer to the tunnels
		if err == nil && exists(i) {
			err = d.probeRules(ctx, i, frame)
		}
	}
	if removed := t.remove(d); removed != nil {
		return errors.Join(err, removed)
	}
	return errors.Join(err, d.removeFilter())
}

// probeSelf is the address of a node that does not know its own (RFC 5737).
var probeSelf = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// haveTunnels reports whether one of the tunnels exists. It fails if another interface has the name of one.
func (d *Driver) haveTunnels() (exist bool, err error) {
	for _, name := range devices {
		link, err := d.link.LinkByName(name)
		var missing netlink.LinkNotFoundError
		switch {
		case errors.As(err, &missing):
			continue
		case err != nil:
			return false, fmt.Errorf("find interface %s: %w", name, err)
		}
		if _, is := link.(*netlink.Vxlan); !is {
			return false, nameTaken(link)
		}
		exist = true
	}
	return exist, nil
}

// probeRules makes the kernel validate the table of a family and then abort.
func (d *Driver) probeRules(ctx context.Context, i int, frame frame) error {
	w := d.writer(i)
	w.removeTable()
	w.newTable()
	for _, c := range frame.chains(w.family) {
		w.chain(c)
	}
	s := &spread{id: 1, content: newContent(false)}
	s.peers[0] = 0
	for tier := range devices {
		w.spread(tier, s)
	}
	if err := d.nft.Check(ctx, w.tx); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return &Problem{NoRules, fmt.Errorf("check the rules (needs a kernel with nft_hash and nft_dup): %s", line)}
	}
	return nil
}

// filterTable drops what is for the UDP port of the tunnels, or leaves for it with this node's address, unless it is
// untracked. Only the rules of this package exempt packets from conntrack: those from and to nodes. So nothing passes
// without these rules, for example after another program has deleted them. Neither does what the node masquerades for a
// Pod, or translates to the tunnel of a node for a Service. The table precedes the tunnels and ends after them.
const filterTable = "ironlb-tunnels"

// setFilter adds or replaces the filter for tunnels of this address.
func (d *Driver) setFilter(self netip.Addr) error {
	i := familyOf(self)
	offset := uint32(12) // of the source in the header of IPv4, and of IPv6
	if self.Is6() {
		offset = 8
	}
	received := []nftbatch.Match{
		nftbatch.Protocol(ipvs.UDP), nftbatch.Tracked(),
		nftbatch.Header(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, binary.BigEndian.AppendUint16(nil, d.cfg.Port)),
	}
	sent := append(received[:len(received):len(received)], nftbatch.Header(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, self.AsSlice()))
	// After IPVS (99) and the translation of the source (100).
	err := d.filter.Replace(families[i].number,
		nftbatch.Chain{Name: "input", Hook: unix.NF_INET_LOCAL_IN, Priority: 300, Drop: received},
		nftbatch.Chain{Name: "postrouting", Hook: unix.NF_INET_POST_ROUTING, Priority: 300, Drop: sent},
	)
	if err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", families[i].name, filterTable, err)
	}
	return nil
}

// removeFilter deletes the filter. The tunnels must not exist.
func (d *Driver) removeFilter() error {
	for i, f := range families {
		if !exists(i) {
			continue
		}
		if err := d.filter.Replace(f.number); err != nil {
			return fmt.Errorf("delete nftables table %s %s: %w", f.name, filterTable, err)
		}
	}
	return nil
}

// guardTable drops what the rules of a family would direct, and what is for the tunnels, while the rules do not exist:
// without them the second tier takes segments of connections of other nodes, and its Pods reset these. Clients send it
// again.
const guardTable = TableName + "-guard"

// guard adds the guard of a family, or adds virtual servers to it.
func (d *Driver) guard(ctx context.Context, i int, directed []ipvs.Key) error {
	d.guarded[i] = true
	of := families[i]
	kind, hook, priority := knftables.FilterType, knftables.PreroutingHook, knftables.BaseChainPriority("-301")
	chain := knftables.Chain{Family: of.name, Table: guardTable, Name: "prerouting"}
	base := chain
	base.Type, base.Hook, base.Priority = &kind, &hook, &priority
	set := knftables.Set{Family: of.name, Table: guardTable, Name: setDirected, Type: of.words.Replace(keyType)}
	tx := d.nft.NewTransaction()
	tx.Add(&knftables.Table{Family: of.name, Name: guardTable})
	tx.Add(&set)
	tx.Add(&base)
	tx.Flush(&chain)
	for _, rule := range []string{fmt.Sprintf("udp dport %d drop", d.cfg.Port), key + " @" + setDirected + " drop"} {
		tx.Add(&knftables.Rule{Family: of.name, Table: guardTable, Chain: chain.Name, Rule: of.words.Replace(rule)})
	}
	batch := nftbatch.New(of.number, guardTable)
	for _, key := range directed {
		batch.Add(setDirected, nftbatch.Element{Key: nftbatch.VirtualServer(key)})
	}
	err := d.nft.Run(ctx, tx)
	if err == nil {
		err = batch.Send()
	}
	if err != nil {
		return fmt.Errorf("add nftables table %s %s: %w", of.name, guardTable, err)
	}
	return nil
}

// unguard deletes the guard of a family, also that of an earlier process.
func (d *Driver) unguard(ctx context.Context, i int) error {
	tx := d.nft.NewTransaction()
	tx.Delete(&knftables.Table{Family: families[i].name, Name: guardTable})
	if err := d.nft.Run(ctx, tx); err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("delete nftables table %s %s: %w", families[i].name, guardTable, err)
	}
	d.guarded[i] = false
	return nil
}
