package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// resubscribeAfter is the pause after the kernel has dropped a subscription, as it does when events arrive faster than
// they are read.
const resubscribeAfter = 100 * time.Millisecond

// Watch calls changed when an interface or an address changes in the network namespace of the calling thread; when one
// of our local routes is deleted; when another program adds or deletes one, which may replace ours; and whenever events
// may have been missed. It calls routed likewise when a route with a gateway is added or removed, and when an interface
// changes, because the kernel then drops routes without an event (fib_sync_down_dev in net/ipv4/fib_semantics.c).
// Neither callback may block. Watch is a task: it returns nil when ctx ends.
func Watch(ctx context.Context, changed, routed func()) error {
	for {
		s, err := subscribe()
		if err != nil {
			return err
		}
		changed() // for changes before the subscription
		routed()
		s.forward(ctx, changed, routed)
		s.close()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribeAfter):
		}
	}
}

// subscription is a set of netlink sockets. A goroutine of the library reads each of them, and ends after done is
// closed.
type subscription struct {
	done   chan struct{}
	links  chan netlink.LinkUpdate
	addrs  chan netlink.AddrUpdate
	routes chan netlink.RouteUpdate
}

// subscribe opens the sockets in the network namespace of the calling thread. It names no namespace: the library would
// enter a named one, even its own, which needs CAP_SYS_ADMIN.
func subscribe() (*subscription, error) {
	s := &subscription{
		done:   make(chan struct{}),
		links:  make(chan netlink.LinkUpdate),
		addrs:  make(chan netlink.AddrUpdate),
		routes: make(chan netlink.RouteUpdate),
	}
	var errs []error
	if err := netlink.LinkSubscribeWithOptions(s.links, s.done, netlink.LinkSubscribeOptions{}); err != nil {
		errs = append(errs, fmt.Errorf("subscribe to interfaces: %w", err))
		close(s.links)
	}
	if err := netlink.AddrSubscribeWithOptions(s.addrs, s.done, netlink.AddrSubscribeOptions{}); err != nil {
		errs = append(errs, fmt.Errorf("subscribe to addresses: %w", err))
		close(s.addrs)
	}
	if err := netlink.RouteSubscribeWithOptions(s.routes, s.done, netlink.RouteSubscribeOptions{}); err != nil {
		errs = append(errs, fmt.Errorf("subscribe to routes: %w", err))
		close(s.routes)
	}
	if err := errors.Join(errs...); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// wakePause is the minimum interval between two calls: hundreds of addresses may change at once.
const wakePause = 20 * time.Millisecond

// forward calls changed and routed until ctx ends or one of the sockets fails.
func (s *subscription) forward(ctx context.Context, changed, routed func()) {
	var last time.Time
	var due <-chan time.Time
	for {
		select {
		case <-due:
		case <-ctx.Done():
			return
		case _, ok := <-s.links:
			if !ok {
				return
			}
			routed()
		case _, ok := <-s.addrs:
			if !ok {
				return
			}
		case route, ok := <-s.routes:
			if !ok {
				return
			}
			if len(gatewaysOf(route.Route)) > 0 {
				routed()
			}
			if !affectsVIP(route) {
				continue
			}
		}
		if wait := wakePause - time.Since(last); wait > 0 {
			if due == nil {
				due = time.After(wait)
			}
			continue
		}
		changed()
		last, due = time.Now(), nil
	}
}

// affectsVIP reports whether a route change may remove a virtual address, or an obstacle to one. A route that the
// kernel adds or removes itself comes with an interface address, which has an event of its own.
func affectsVIP(u netlink.RouteUpdate) bool {
	if u.Protocol == Protocol {
		return u.Type == unix.RTM_DELROUTE
	}
	return u.Table == unix.RT_TABLE_LOCAL && u.Protocol != unix.RTPROT_KERNEL
}

// close ends the goroutines of the library. They may be about to send, so their channels are drained until they close.
func (s *subscription) close() {
	close(s.done)
	for range s.links {
	}
	for range s.addrs {
	}
	for range s.routes {
	}
}
