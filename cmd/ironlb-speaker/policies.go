package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs/nft"
)

// policiesEvery is how often the node's other firewalls are looked at: nothing tells that iptables has changed.
const policiesEvery = 10 * time.Second

// keepPolicies lets connections to virtual servers pass firewalls that drop by policy, until ctx ends. It logs what it changes, and a
// problem or an error when it is new. It gives up nothing: a firewall in the way does not stop the rest.
func keepPolicies(ctx context.Context, log *slog.Logger, apply func(context.Context) ([]string, []nft.Problem, error)) error {
	ticker := time.NewTicker(policiesEvery)
	defer ticker.Stop()
	var known []nft.Problem
	var failed string
	for {
		changed, problems, err := apply(ctx)
		if ctx.Err() != nil {
			return nil
		}
		for _, rule := range changed {
			log.Info("add rule", "rule", rule, "reason", "FirewallPolicy")
		}
		for _, p := range problems {
			if !slices.Contains(known, p) {
				log.Warn("another firewall may drop packets to virtual servers", "where", p.Where, "reason", string(p.Reason), "mend", p.Text)
			}
		}
		known = problems
		if err == nil {
			failed = ""
		} else if text := err.Error(); text != failed {
			log.Error("cannot look at the node's other firewalls", "error", err)
			failed = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
