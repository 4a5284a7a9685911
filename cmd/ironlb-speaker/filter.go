package main

import (
	"context"
	"sync"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// filter is IronLB's nftables tables, opened on first use.
type filter struct {
	dropPing bool

	mu  sync.Mutex
	nft *nft.Filter
}

func (f *filter) open() (*nft.Filter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nft == nil {
		opened, err := nft.New()
		if err != nil {
			return nil, err
		}
		opened.DropPing = f.dropPing
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
	return n.List(ctx)
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
	return n.Build(ctx, want)
}

func (f *filter) Update(ctx context.Context, changes []ipvs.FilterChange) (int, error) {
	n, err := f.open()
	if err != nil {
		return 0, err
	}
	return n.Update(ctx, changes)
}

func (f *filter) Remove(ctx context.Context) error {
	n, err := f.open()
	if err != nil {
		return err
	}
	return n.Remove(ctx)
}
