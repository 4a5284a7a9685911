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
	host := make(map[netip.Addr]struct{}, len(addrs))
	for _, addr := range addrs {
		host[addr] = struct{}{}
	}
	source.SetHost(host)
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
