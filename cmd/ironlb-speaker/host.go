package main

import (
	"log/slog"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/speaker/plan"
)

// noteHost tells the source of the addresses of this node.
func noteHost(l *link.Link, source *kube.Source, log *slog.Logger) {
	addrs, err := l.HostAddresses()
	if err != nil {
		log.Warn("the addresses of this node are not known; NodePorts and external IPs stay where they are", "error", err)
		return
	}
	source.SetHost(setOf(addrs))
}

// noteGateways tells the source of the gateways of this node.
func noteGateways(l *link.Link, source *kube.Source, log *slog.Logger) {
	addrs, err := l.Gateways()
	if err != nil {
		log.Warn("the gateways of this node are not known; those that were known last stay protected", "error", err)
		return
	}
	source.SetGateways(setOf(addrs))
}

func setOf(addrs []netip.Addr) map[netip.Addr]struct{} {
	out := make(map[netip.Addr]struct{}, len(addrs))
	for _, addr := range addrs {
		out[addr] = struct{}{}
	}
	return out
}

// noteLinks tells the source on which interfaces addresses can be answered for.
func noteLinks(source *kube.Source, log *slog.Logger) {
	all, err := l2.Links()
	if err != nil {
		log.Warn("the network interfaces of this node are not known; addresses stay where they are", "error", err)
		return
	}
	links := make(map[string]plan.Link, len(all))
	for _, l := range all {
		links[l.Name] = l
	}
	source.SetLinks(links)
}
