package main

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// filter is our nftables table, opened when it is first used.
type filter struct {
	mu   sync.Mutex
	nft  *nft.Firewall
	have ipvs.Filter // nil: not built
}

func (f *filter) open() (*nft.Firewall, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nft == nil {
		opened, err := nft.New()
		if err != nil {
			return nil, err
		}
		f.nft = opened
	}
	return f.nft, nil
}

func (f *filter) close() {
	if f.nft != nil {
		f.nft.Close()
	}
}

func (f *filter) List(ctx context.Context) (ipvs.Filter, error) {
	n, err := f.open()
	if err != nil {
		return nil, err
	}
	fw, err := n.List(ctx)
	if err != nil {
		return nil, err
	}
	out := ipvs.Filter{}
	for addr := range fw.Addrs {
		out[ipvs.Element{Set: ipvs.Addresses, Key: ipvs.Key{Addr: addr}}] = struct{}{}
	}
	for key := range fw.Served {
		out[ipvs.Element{Set: ipvs.Served, Key: key}] = struct{}{}
	}
	for key := range fw.Masquerade {
		out[ipvs.Element{Set: ipvs.Masqueraded, Key: key}] = struct{}{}
	}
	return out, nil
}

func (f *filter) Check(ctx context.Context) (bool, error) {
	n, err := f.open()
	if err != nil {
		return false, err
	}
	return n.Check(ctx)
}

func (f *filter) Build(ctx context.Context, want ipvs.Filter) (int, error) {
	n, err := f.open()
	if err != nil {
		return 0, err
	}
	fw := ipvs.Firewall{Addrs: map[netip.Addr]struct{}{}, Served: map[ipvs.Key]struct{}{}, Masquerade: map[ipvs.Key]struct{}{}}
	for e := range want {
		switch e.Set {
		case ipvs.Addresses:
			fw.Addrs[e.Key.Addr] = struct{}{}
		case ipvs.Served:
			fw.Served[e.Key] = struct{}{}
		case ipvs.Masqueraded:
			fw.Masquerade[e.Key] = struct{}{}
		}
	}
	f.have = nil
	written, err := n.Apply(ctx, fw)
	if err == nil {
		f.have = maps.Clone(want)
	}
	return written, err
}

func (f *filter) Update(ctx context.Context, changes []ipvs.FilterChange) (int, error) {
	if f.have == nil {
		return 0, errors.New("the nftables table is not built")
	}
	want := maps.Clone(f.have)
	for _, c := range changes {
		if c.Delete {
			delete(want, c.Element)
		} else {
			want[c.Element] = struct{}{}
		}
	}
	return f.Build(ctx, want)
}

func (f *filter) Remove(ctx context.Context) error {
	n, err := f.open()
	if err != nil {
		return err
	}
	return n.Remove(ctx)
}
