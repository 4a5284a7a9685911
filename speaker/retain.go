package speaker

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

const (
	// retainFor is how long the kernel answers for the addresses of a replaced speaker: the time that the next speaker
	// may take to start, including the image pull. Meanwhile the other members check that the node still answers
	// (speaker/member). They wait retainMore longer because the kernel rounds up.
	retainFor  = 2 * time.Minute
	retainMore = time.Second
	// retainWithin is how soon after Retain the process must end: a kubelet ends a container that soon after its
	// preStop hook.
	retainWithin = time.Minute
)

// retention is the state of addresses for which the kernel answers while no speaker runs.
type retention struct {
	// asked is when Retain was last called.
	asked atomic.Pointer[time.Time]
	// awaiting are the undecided addresses that the previous process left to the kernel. began is when this process could
	// first decide; done is set once all are decided or have expired.
	awaiting map[netip.Addr]struct{}
	began    time.Time
	done     bool
}

// Retain makes a Leave within one minute leave the announced addresses to the kernel for two minutes, because another
// speaker is about to start on this node. It never blocks.
func (s *Speaker) Retain() {
	now := time.Now()
	s.retention.asked.Store(&now)
}

// retain leaves all announced addresses to the kernel, or none, if that was requested and is possible. It reports
// whether it did.
func (s *Speaker) retain(now time.Time) bool {
	asked := s.retention.asked.Load()
	if asked == nil || now.Sub(*asked) > retainWithin || len(s.l2.Held()) == 0 || s.cfg.Node.Retainer == nil {
		return false
	}
	err := s.mayRetain()
	if err == nil {
		err = s.cfg.Node.Retainer.Retain(s.l2.Held(), retainFor)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot retain the addresses in the kernel, handing over", "error", err)
		return false
	}
	for _, addr := range slices.SortedFunc(maps.Keys(s.l2.Held()), netip.Addr.Compare) {
		s.log(slog.LevelInfo, "retain", "address", addr, "interfaces", s.l2.Held()[addr], "for", retainFor)
	}
	s.cfg.Detector.Retain(retainFor + retainMore)
	return true
}

// mayRetain returns why the kernel cannot take over the published claims of this process.
func (s *Speaker) mayRetain() error {
	switch {
	case s.view.Members.Observer:
		return errors.New("this node is still an observer")
	case s.view.Nodes[s.cfg.NodeName].Decommissioning():
		return errors.New("the node is being decommissioned")
	case len(s.retention.awaiting) > 0:
		return errors.New("addresses retained by the previous process are still undecided")
	case !s.dataplane.Known():
		return errors.New("the state of the node is not known")
	}
	for vip, c := range s.published.Claims {
		if c.State == view.HandingOver {
			return fmt.Errorf("VirtualIP %s is being handed over", vip)
		}
		for _, addr := range s.desired.VIPs[vip].Addresses {
			if c.State == view.Held && len(s.l2.Held()[addr]) == 0 {
				return fmt.Errorf("address %v is not answered for yet", addr)
			}
		}
	}
	for addr := range s.l2.Held() {
		if !s.dataplane.IsLocal(addr) { // as alongside a kube-proxy that serves it (ipMode VIP)
			return fmt.Errorf("address %v is not local to the node", addr)
		}
	}
	return nil
}

// release ends the retention of an address of the previous process once this process announces it, another node does,
// or no node is to. An undecided address stays until its lifetime ends.
func (s *Speaker) release(now time.Time) {
	r := &s.retention
	if r.done || s.cfg.Node.Retainer == nil || s.desired == nil || s.view.Members.Observer {
		return
	}
	if r.began.IsZero() {
		r.began, r.awaiting = now, maps.Clone(s.cfg.Retained)
	}
	decided := map[netip.Addr]struct{}{}
	undecided := s.undecided()
	for addr := range r.awaiting {
		if has(s.l2.Held(), addr) || !has(undecided, addr) {
			decided[addr] = struct{}{}
		}
	}
	if err := s.cfg.Node.Retainer.Release(decided); err != nil {
		s.fail(err)
		return
	}
	for _, addr := range sorted(decided) {
		delete(r.awaiting, addr)
		s.log(slog.LevelInfo, "release", "address", addr, "answered", has(s.l2.Held(), addr))
	}
	if len(r.awaiting) == 0 || now.Sub(r.began) > retainFor {
		r.done = true
		s.cfg.Detector.Settled()
	}
}

// undecided returns the addresses that this node may soon announce.
func (s *Speaker) undecided() map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for _, dec := range s.desired.VIPs {
		if dec.Owner == s.cfg.NodeName || dec.Owner == "" {
			for _, addr := range dec.Addresses {
				out[addr] = struct{}{}
			}
		}
	}
	return out
}
