package main

import (
	"context"
	"net/netip"
	"strings"
	"syscall"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// peer is a product that holds addresses on the candidates.
type peer interface {
	// start starts it on every candidate; the nodes are fresh.
	start(context.Context) error
	// stop ends it everywhere. What it leaves on a node goes with the node.
	stop(context.Context) error
	// startOn starts it on a node where it has ended.
	startOn(context.Context, *lab.Node) error
	// signal reaches all its processes on a node; SIGTERM and SIGKILL do not wait for their end.
	signal(*lab.Node, syscall.Signal) error
	// ready is nil when the node could take an address over.
	ready(context.Context, *lab.Node) error
	// has tells whether a fault has a meaning for it.
	has(fault string) bool

	addrs() []netip.Addr
	target(netip.Addr) steady.Target
	// clusterIP is that of the Service with the address; the zero Addr if there is none.
	clusterIP(netip.Addr) netip.Addr
}

const keepalivedName = "keepalived"

func peerNames() []string { return []string{"standard", "fast", "keepalived", "keepalived-0.1"} }

// podPeerNames are those of the rows "pods".
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
		return &metallb{b: b, services: services{b: b, family: family}}
	}
	return &ironlb{b: b, services: services{b: b, family: family}, profile: name}
}
