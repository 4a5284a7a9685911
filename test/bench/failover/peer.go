package main

import (
	"context"
	"net/netip"
	"strings"
	"syscall"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// peer is a product that owns addresses on the candidates.
type peer interface {
	// start starts it on every candidate; the nodes are fresh.
	start(context.Context) error
	// stop ends it everywhere. Its residual state on a node is removed with the node.
	stop(context.Context) error
	// startOn starts it on a node where it has ended.
	startOn(context.Context, *lab.Node) error
	// signal sends a signal to all its processes on a node; SIGTERM and SIGKILL do not wait for their end.
	signal(*lab.Node, syscall.Signal) error
	// ready returns nil if the node could take over an address.
	ready(context.Context, *lab.Node) error
	// has reports whether a fault applies to it.
	has(fault string) bool

	addrs() []netip.Addr
	target(netip.Addr) steady.Target
	// clusterIP returns the ClusterIP of the Service with the address; the zero Addr without one.
	clusterIP(netip.Addr) netip.Addr
}

const keepalivedName = "keepalived"

func peerNames() []string { return []string{"standard", "fast", "keepalived", "keepalived-0.1"} }

// podPeerNames returns the peers of the rows "pods".
func podPeerNames() []string {
	return []string{"standard", "fast", metallbName, keepalivedName, "keepalived-1s"}
}

func newPeer(b *bench, name, family string) peer {
	if b.withPods() && strings.HasPrefix(name, keepalivedName) {
		return newLVS(b, name, family)
	}
	if interval, ok := strings.CutPrefix(name, keepalivedName); ok {
		k := &keepalived{b: b, family: family, interval: strings.TrimPrefix(interval, "-")}
		if k.interval == "" {
			k.interval = "1"
		}
		return k
	}
	if name == metallbName {
		return &metalLB{b: b, services: services{b: b, family: family}}
	}
	return &ironlb{b: b, services: services{b: b, family: family}, profile: name}
}
