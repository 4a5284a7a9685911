package main

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/bfd"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// bfdSessions are the BFD sessions of BGP peers. They continue while GoBGP is down, so the C bit is set.
type bfdSessions struct{ *bfd.Driver }

func newBFD(log *slog.Logger, metrics prometheus.Registerer, changed func(map[string]bgp.BFDStatus)) bfdSessions {
	return bfdSessions{bfd.New(bfd.Options{
		Log: log, Metrics: metrics, Independent: true,
		Changed: func(all map[string]bfd.Status) {
			out := make(map[string]bgp.BFDStatus, len(all))
			for name, s := range all {
				out[name] = bgp.BFDStatus{State: s.State, Since: s.Since, Dead: s.Reason == bfd.Expired || s.Reason == bfd.PeerDown, Why: why(s)}
			}
			changed(out)
		},
	})}
}

// Set replaces the sessions by one with each of the peers.
func (b bfdSessions) Set(peers map[string]routes.Peer) {
	configs := make(map[string]bfd.Config, len(peers))
	for name, p := range peers {
		configs[name] = bfd.Of(p)
	}
	b.Driver.Set(configs)
}

// why returns why a session is not up, as text.
func why(s bfd.Status) string {
	switch {
	case s.State == view.BFDUp:
		return ""
	case s.Problem != "":
		return s.Problem
	case s.Reason == bfd.Expired:
		return fmt.Sprintf("nothing came from the peer for %v", s.Detected)
	case s.Reason == bfd.PeerDown:
		return fmt.Sprintf("the peer took the session down: %v", s.RemoteDiagnostic)
	case s.Reason == bfd.PeerAdminDown:
		return "the peer ended the session on purpose"
	}
	if s.Received {
		return "it has not been up yet: packets of the peer arrive, but report that it does not receive this node"
	}
	return "it has not been up yet: no BFD packet of the peer has arrived"
}
