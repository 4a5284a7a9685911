package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

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

// policiesEvery is the interval of checks of the node's other firewalls.
const policiesEvery = 10 * time.Second

// applyFunc is the signature of [nft.Policies.Apply].
type applyFunc func(context.Context) (changed []string, problems []nft.Problem, err error)

// keepPolicies lets connections to virtual servers pass firewalls that drop by policy, until ctx ends. It logs its
// changes and each new error, and passes on the problems of each check. It never fails: a blocking firewall does not
// stop the other tasks.
func keepPolicies(ctx context.Context, log *slog.Logger, apply applyFunc, found func([]nft.Problem)) error {
	return keepPoliciesBy(ctx, log, apply, found, nft.Generation)
}

// keepPoliciesBy is keepPolicies with a function that detects whether any firewall may have changed. If the last check
// found no problem, and nothing has changed, there is no check: it starts programs.
func keepPoliciesBy(ctx context.Context, log *slog.Logger, apply applyFunc, found func([]nft.Problem), generation func() (uint32, error)) error {
	ticker := time.NewTicker(policiesEvery)
	defer ticker.Stop()
	var failed string
	var seen uint32
	well := false
	for {
		now, unknown := generation()
		if well && unknown == nil && now == seen {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			continue
		}
		changed, problems, err := apply(ctx)
		seen, well = now, unknown == nil && err == nil && len(problems) == 0
		if ctx.Err() != nil {
			return nil
		}
		for _, rule := range changed {
			log.Info("add rule", "rule", rule, "reason", "FirewallPolicy")
		}
		if err == nil || len(problems) > 0 {
			found(problems)
		}
		if err == nil {
			failed = ""
		} else if text := err.Error(); text != failed {
			log.Error("failed to list the node's other firewalls", "error", err)
			failed = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
