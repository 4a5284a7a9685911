package main

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/speaker/view"
)

// updateHost passes the addresses of this node to the source.
func updateHost(l *link.Link, source *kube.Source, log *slog.Logger) {
	addrs, err := l.HostAddresses()
	if err != nil {
		log.Warn("the addresses of this node are not known; NodePorts and external IPs stay where they are", "error", err)
		return
	}
	source.SetHost(setOf(addrs))
}

// updateGateways passes the gateways of this node to the source, and returns how long that took.
func updateGateways(l *link.Link, source *kube.Source, log *slog.Logger) time.Duration {
	start := time.Now()
	addrs, err := l.Gateways()
	if err != nil {
		log.Warn("the gateways of this node are not known; those that were known last stay protected", "error", err)
	} else {
		source.SetGateways(setOf(addrs))
	}
	return time.Since(start)
}

// gatewaysEvery is the minimum interval between two reads of all routes. The interval is at least gatewaysShare times
// the duration of one read: a node in a fabric may have very many routes, which change often.
const gatewaysEvery, gatewaysShare = time.Second, 50

// followGateways updates the gateways when routes changed. It is a task.
func followGateways(ctx context.Context, routed <-chan struct{}, took time.Duration, l *link.Link, source *kube.Source, log *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(gatewaysEvery, gatewaysShare*took)):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-routed:
		}
		took = updateGateways(l, source, log)
	}
}

func setOf(addrs []netip.Addr) map[netip.Addr]struct{} {
	out := make(map[netip.Addr]struct{}, len(addrs))
	for _, addr := range addrs {
		out[addr] = struct{}{}
	}
	return out
}

// updateLinks passes the interfaces on which addresses can be announced to the source.
func updateLinks(source *kube.Source, log *slog.Logger) {
	all, err := l2.Links()
	if err != nil {
		log.Warn("the network interfaces of this node are not known; addresses stay where they are", "error", err)
		return
	}
	links := make(map[string]view.Link, len(all))
	for _, l := range all {
		links[l.Name] = l
	}
	source.SetLinks(links)
}
