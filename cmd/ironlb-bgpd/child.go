package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os/signal"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/bgp/gobgp"
	"github.com/ironlb/ironlb/speaker/plan"
)

// runChild runs the child. Its parent ends it: signals to the process group are handled by the parent.
func runChild(ctx context.Context, log *slog.Logger) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	return bgp.ServeFile(ctx, bgp.ChildFile, log, func(report func(plan.Session)) bgp.Driver {
		return onePeer{gobgp.New(gobgp.Options{Log: log, Report: func(r plan.BGPReport) {
			if s := r.Sessions[peerName]; s != nil {
				report(*s)
			}
		}})}
	})
}

// peerName is the name of the only peer of the driver.
const peerName = "peer"

// onePeer is a driver with one peer.
type onePeer struct{ *gobgp.Driver }

func (o onePeer) Apply(c bgp.PeerChange) error {
	change := plan.BGPChange{Full: c.Full, RouterID: c.Peer.RouterID, Peers: map[string]*plan.Peer{peerName: &c.Peer}, Routes: map[netip.Prefix]plan.Route{}}
	for prefix, a := range c.Routes {
		change.Routes[prefix] = nil
		if a != nil {
			change.Routes[prefix] = plan.Route{peerName: *a}
		}
	}
	return o.Driver.Apply(change)
}

func (o onePeer) Down(why string) { o.Driver.Down(peerName, why) }
func (o onePeer) Up()             { o.Driver.Up(peerName) }

func (o onePeer) Leave(ctx context.Context, l bgp.Leave) error {
	if !l.Removed {
		return o.Driver.Leave(ctx, true)
	}
	err := o.Driver.Apply(plan.BGPChange{Peers: map[string]*plan.Peer{peerName: nil}})
	time.Sleep(bgp.RemoveTime)
	return err
}
