package direct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// Probe returns a [Problem] if this node cannot use tunnels. Where there are none, it adds them for a moment, without
// a peer: only the kernel knows whether it has vxlan and the port is free. It leaves nothing.
func (d *Driver) Probe(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.link.LinkByName(Device1)
	var missing netlink.LinkNotFoundError
	if err == nil || !errors.As(err, &missing) {
		return nil // Apply corrects them, or reports what they are
	}
	var t tunnels
	if err = d.probeTunnels(); err == nil { // rules refer to them
		err = d.probeRules(ctx)
	}
	if removed := t.remove(d); err == nil {
		err = removed
	}
	return err
}

func (d *Driver) probeTunnels() error {
	for tier, name := range devices {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: tier + 1, Port: int(d.cfg.Port)}
		if err := d.link.LinkAdd(link); err != nil {
			return problemOf(link, err)
		}
		if err := d.link.LinkSetUp(link); err != nil {
			return problemOf(link, err)
		}
	}
	return nil
}

// probeRules makes the kernel validate a table of IPv4 and then abort.
func (d *Driver) probeRules(ctx context.Context) error {
	w := d.writer(nftwatch.IP)
	w.removeTable()
	w.newTable()
	for _, c := range (frame{self: netip.AddrFrom4([4]byte{192, 0, 2, 1}), port: d.cfg.Port, mtu: 1450}).chains(w.family) {
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
