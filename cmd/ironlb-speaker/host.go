package main

import (
	"log/slog"
	"net/netip"

	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/link"
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
