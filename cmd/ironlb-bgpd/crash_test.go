package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/lab/router"
)

// TestPeerThatCrashes: a peer crashes its GoBGP process, at each start. Other peers are not affected.
func TestPeerThatCrashes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string) {
		r := newRig(t, kind, true)
		r.node.Address(t, "lo", "203.0.113.200/32")
		var l net.Listener
		r.node.Must(t, func() (err error) {
			l, err = net.Listen("tcp4", "203.0.113.200:1790")
			return err
		})
		evil := make(chan struct{})
		go func() {
			defer close(evil)
			for i := 0; router.Crashes[i%len(router.Crashes)].Take(l) == nil; i++ {
			}
		}()
		defer func() {
			l.Close()
			<-evil
		}()
		s := r.speaker()
		s.Set(wanted(true, true))
		before := r.settled(true)
		mine, seen := r.session(s, "established", established), len(r.monitor.Events())
		bfd, err := r.bfd()
		if err != nil {
			t.Fatal(err)
		}
		s.Set(routes.Change{RouterID: addr("192.0.2.1"), Peers: map[string]*routes.Peer{"evil": {
			Address: addr("203.0.113.200"), Port: 1790, MyASN: 65001, PeerASN: 65002, IPv4: true, MultiHop: true, ConnectTime: time.Second,
		}}})
		var ended time.Time
		for range 2 * len(router.Crashes) {
			ended = r.sessionOf(s, "evil", "GoBGP has ended once more", func(s routes.Session) bool {
				return s.Reason == routes.NoBGPProcess && s.Since.After(ended) && strings.Contains(s.Message, "panic: ")
			}).Since
		}
		if now := r.session(s, "established", established); now != mine {
			t.Errorf("the other's session was %+v and is %+v", mine, now)
		}
		now := r.settled(true)
		if !same(now.Since, before.Since) {
			t.Errorf("the router's session was since %v and is since %v", before.Since, now.Since)
		}
		if is, err := r.bfd(); err != nil || is.State != "Up" || is.Downs != bfd.Downs {
			t.Errorf("the router's BFD session was %+v and is %+v (%v)", bfd, is, err)
		}
		if events := r.changes(seen); len(events) > 0 {
			t.Errorf("the router's routes changed: %v", events)
		}
	})
}
