package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/dataplane"
	"github.com/ironlb/ironlb/speaker/view"
)

// handoverTimeout is how long a stopping speaker waits for its successors.
const handoverTimeout = 5 * time.Second

// Leave makes Run hand over the addresses that this node owns and return once the successors announce them, or after
// five seconds. After Retain it leaves them to the kernel and returns. The node continues to forward during and after
// that. It never blocks.
func (s *Speaker) Leave() {
	s.ending.Store(true)
	s.cfg.Trigger.Now()
}

// handoverDone reports whether there is nothing more to wait for.
func (s *Speaker) handoverDone(now time.Time) bool {
	if !s.leaving.Load() {
		return false
	}
	if s.leaveBy.IsZero() {
		s.leaveBy = now.Add(handoverTimeout)
	}
	for vip, c := range s.published.Claims {
		if now.Before(s.leaveBy) && (c.State == view.HandingOver || c.Announces() && s.successorStarting(vip)) {
			return false
		}
	}
	return s.desired == nil || s.published.Leaving
}

// successorStarting reports whether a listed node has just started: it can take over soon.
func (s *Speaker) successorStarting(vip string) bool {
	return slices.ContainsFunc(s.view.VIPs[vip].Nodes, func(node string) bool {
		m := s.view.Members.Peers[node]
		return m.Alive && !m.Away && m.Observer
	})
}

// stopAnnouncing stops the remaining announcements and publishes the end of this process.
func (s *Speaker) stopAnnouncing() {
	if s.desired == nil {
		return
	}
	s.l2.WithdrawAll()
	s.cfg.Detector.Publish(view.LocalState{Leaving: true, Direct: s.published.Direct})
}

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

// Cleanup removes IronLB's state, and nothing else, from a node on which no speaker runs any more: retained addresses,
// blackhole routes, and the state of its data plane. Sysctls stay as they are.
//
// It continues after an error. A second call completes what failed in the first one.
func Cleanup(ctx context.Context, node Node, log *slog.Logger) error {
	errs := []error{releaseRetained(node.Retainer, log), advertise.CleanupBlackholes(node.Blackholes, log)}
	errs = append(errs, dataplane.Cleanup(ctx, node.Drivers, log))
	return errors.Join(errs...)
}

// releaseRetained releases the addresses for which the kernel answers on behalf of a replaced speaker.
func releaseRetained(r Retainer, log *slog.Logger) error {
	if r == nil {
		return nil
	}
	retained, err := r.Retained()
	if err != nil {
		return err
	}
	if err := r.Release(retained); err != nil {
		return err
	}
	for _, addr := range sorted(retained) {
		log.Info("release", "address", addr, "reason", "Cleanup")
	}
	return nil
}
