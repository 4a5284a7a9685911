package nftlb

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nftwatch"
)

// Remove deletes the tables. It succeeds if there are none. Existing connections stay.
func (b *Balancer) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).removeTable()
			touched[i] = 1
		}
	}
	b.known = false
	if touched == (nftwatch.Counts{}) {
		return nil
	}
	return b.run(tx, touched)
}

// SetPods sets the sources that are cluster-internal. It does not affect existing connections.
func (b *Balancer) SetPods(pods ipvs.PodSources) error {
	for _, p := range pods.Prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("set the Pods' networks: %w prefix %v", ipvs.ErrInvalid, p)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return err
	}
	pods.Prefixes, pods.Interfaces = ipvs.Disjoint(pods.Prefixes), slices.Sorted(slices.Values(pods.Interfaces))
	if pods.Equal(b.pods) {
		return nil
	}
	tx := b.nft.NewTransaction()
	var touched nftwatch.Counts
	for i, t := range b.tables {
		if t.exists {
			b.writer(tx, i).pods(pods)
			touched[i] = 1
		}
	}
	if touched != (nftwatch.Counts{}) {
		if err := b.run(tx, touched); err != nil {
			return fmt.Errorf("set the Pods' networks: %w", err)
		}
	}
	b.pods = pods
	return nil
}

// Generation returns a number that changes when the tables were read because another program changed them, or an own
// change failed: what was listed before is then outdated. Otherwise it costs a system call.
func (b *Balancer) Generation() (n uint64, watched bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err = b.sync()
	return b.generation, true, err
}

// List returns all virtual servers.
func (b *Balancer) List() (ipvs.Table, error) {
	return b.list(func(netip.Addr) bool { return true })
}

// ListOf returns the virtual servers of these addresses.
func (b *Balancer) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return b.list(func(a netip.Addr) bool { _, ok := addrs[a]; return ok })
}

func (b *Balancer) list(want func(netip.Addr) bool) (ipvs.Table, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	found := make(ipvs.Table)
	for key, v := range b.have {
		if want(key.Addr) {
			found[key] = ipvs.VirtualServer{Settings: v.Settings, RealServers: maps.Clone(v.RealServers)}
		}
	}
	return found, nil
}

// Virtuals returns the virtual servers without their real servers. Without a foreign change of the tables it costs a
// system call and a copy.
func (b *Balancer) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.sync(); err != nil {
		return nil, err
	}
	virtuals := make(map[ipvs.Key]ipvs.Settings, len(b.have))
	for key, v := range b.have {
		virtuals[key] = v.Settings
	}
	return virtuals, nil
}

// Probe checks whether the scheduler is supported and whether the kernel accepts the rules that implement it. It leaves
// nothing.
//
// The error wraps [ipvs.ErrNoScheduler] or includes the remediation.
func (b *Balancer) Probe(name string) error {
	if err := checkScheduler(name); err != nil {
		return fmt.Errorf("probe nftables: %w", err)
	}
	tx := b.nft.NewTransaction()
	w := b.writer(tx, nftwatch.IP)
	w.table += "-probe"
	w.newTable(b.scope)
	w.class(classOf(ipvs.Settings{Scheduler: name}, 1))
	if err := b.nft.Check(context.Background(), tx); err != nil {
		return fmt.Errorf("probe nftables (needs CAP_NET_ADMIN and a kernel with nft_nat, nft_numgen, nft_hash and nft_reject): %w", err)
	}
	return nil
}
