package speaker

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

const (
	// retainFor is how long the kernel answers for the addresses of a speaker that is replaced: as long as the next one
	// may take to start, with the pull of its image. The others ask meanwhile whether the node still answers
	// (speaker/member), and wait retainMore longer: the kernel rounds up.
	retainFor  = 2 * time.Minute
	retainMore = time.Second
	// retainWithin is how soon after Retain the process must end: as soon as a kubelet ends a container after its preStop hook.
	retainWithin = time.Minute
)

// retention is what the kernel answers for while no speaker runs.
type retention struct {
	// asked is when Retain was called last.
	asked atomic.Pointer[time.Time]
	// former are the addresses that the process before this one left to the kernel and that are not decided on. began is when this one
	// first could; done is set once all are.
	former map[netip.Addr]struct{}
	began  time.Time
	done   bool
}

// Retain makes a Leave within a minute leave what this node holds to the kernel, for two minutes: another speaker is about to start
// here. It never blocks.
func (s *Speaker) Retain() {
	now := time.Now()
	s.retention.asked.Store(&now)
}

// retain leaves what this node holds to the kernel if that was asked for and can be done: all of it, or nothing. It tells whether it did.
func (s *Speaker) retain(now time.Time) bool {
	asked := s.retention.asked.Load()
	if asked == nil || now.Sub(*asked) > retainWithin || len(s.held) == 0 || s.cfg.Node.Retainer == nil {
		return false
	}
	err := s.mayRetain()
	if err == nil {
		err = s.cfg.Node.Retainer.Retain(s.held, retainFor)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot leave the addresses to the kernel; handing them over", "error", err)
		return false
	}
	for _, addr := range sortedKeys(s.held) {
		s.log("retain", "address", addr, "interfaces", s.held[addr], "for", retainFor)
	}
	s.cfg.Detector.Retain(retainFor + retainMore)
	return true
}

// mayRetain returns why the kernel cannot answer in place of this process, with what the others were told.
func (s *Speaker) mayRetain() error {
	switch {
	case s.view.Members.Observer:
		return errors.New("this node has not heard the others for long enough")
	case s.view.Nodes[s.cfg.NodeName].Goes():
		return errors.New("the node is about to go as well")
	case len(s.retention.former) > 0:
		return errors.New("not all is decided that the process before left to the kernel")
	case s.known == nil:
		return errors.New("the state of the node is not known")
	}
	for vip, c := range s.said.Claims {
		if c.State == plan.Leaving {
			return fmt.Errorf("VirtualIP %s is being handed over", vip)
		}
		for _, addr := range s.desired.VIPs[vip].Addresses {
			if c.State == plan.Held && len(s.held[addr]) == 0 {
				return fmt.Errorf("address %v is not answered for yet", addr)
			}
		}
	}
	for addr := range s.held {
		if !has(s.known.addrs, addr) { // as beside a kube-proxy that serves it (ipMode VIP)
			return fmt.Errorf("address %v is not local to the node", addr)
		}
	}
	return nil
}

// release has the kernel stop answering for what the process before this one left to it: once this one answers, or another node does, or
// nobody is to. What is not decided stays until its time is over.
func (s *Speaker) release(now time.Time) {
	r := &s.retention
	if r.done || s.cfg.Node.Retainer == nil || s.desired == nil || s.view.Members.Observer {
		return
	}
	if r.began.IsZero() {
		r.began, r.former = now, maps.Clone(s.cfg.Retained)
	}
	decided := map[netip.Addr]struct{}{}
	undecided := s.undecided()
	for addr := range r.former {
		if has(s.held, addr) || !has(undecided, addr) && !s.keepsAddress(addr) {
			decided[addr] = struct{}{}
		}
	}
	if err := s.cfg.Node.Retainer.Release(decided); err != nil {
		s.fail(err)
		return
	}
	for _, addr := range sorted(decided) {
		delete(r.former, addr)
		s.log("release", "address", addr, "answered", has(s.held, addr))
	}
	if len(r.former) == 0 || now.Sub(r.began) > retainFor {
		r.done = true
		s.cfg.Detector.Settled()
	}
}

// undecided returns the addresses that this node may answer for in a moment.
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
