package direct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs"
)

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
