package gobgp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	golog "github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// handleLog processes GoBGP's log entries. Only this file depends on their text (fsm.go and server.go of v3.37.0); the
// tests against real routers detect a change.
func (s *session) handleLog(msg string, f golog.Fields) {
	switch msg {
	case "failed to connect", "state changed", "sent notification", "received notification", "hold timer expired",
		"prefix limit reached":
	case "sync finished":
		s.wakeRun()
		return
	default:
		return
	}
	key, _ := f["Key"].(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.is(key) {
		return
	}
	switch msg {
	case "failed to connect":
		if err, ok := f["Error"].(error); ok {
			s.notConnected(connecting(err, s.peer), errors.Is(err, syscall.EHOSTUNREACH), time.Now())
		}
	case "sent notification":
		if e, ok := f["Data"].(*bgp.MessageError); ok {
			s.pending = refusing(e, s.peer)
			s.asnChanged = s.peer.Dynamic == view.AnyExternal && s.pending.reason == routes.WrongASN
		}
	case "received notification":
		s.pending = refused(f)
	case "hold timer expired":
		s.pending = silent
	case "prefix limit reached":
		s.limitReached(fmt.Sprint(f["Family"]))
	case "state changed":
		s.changing(fmt.Sprint(f["old"]), fmt.Sprint(f["new"]), fmt.Sprint(f["reason"]))
	}
	s.wakeRun()
}

// noHostFor is how long it counts that no host answers at an address. ARP and neighbor discovery take three seconds to
// detect that, and a connection attempt may end before.
const noHostFor = 10 * time.Second

// notConnected records why a TCP connection failed.
func (s *session) notConnected(c cause, noHost bool, now time.Time) {
	s.failed = now
	if noHost {
		s.noHost = now
	} else if c.reason == routes.NoAnswer && s.fail.reason == routes.Unreachable && now.Sub(s.noHost) < noHostFor {
		return
	}
	s.fail = c
}

// connecting returns why a TCP connection failed.
func connecting(err error, p routes.Peer) cause {
	where := fmt.Sprintf("%v port %d", p.Address, p.Port)
	var timeout net.Error
	lacks := noInterface(p)
	switch {
	case lacks != nil:
		return cause{routes.NotConfigured, lacks.Error()}
	case errors.Is(err, syscall.ECONNREFUSED) && isOwn(p.Address):
		return cause{routes.Refused, where + " is an address of this node, where no BGP daemon listens: set another peerAddress, or exclude this node by nodeSelectors"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return cause{routes.Refused, where + " refuses the connection: does a BGP daemon listen there?"}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return cause{routes.NotConfigured, fmt.Sprintf("sourceAddress: this node does not have %v", p.Source)}
	case errors.Is(err, syscall.ENETUNREACH):
		return cause{routes.Unreachable, "this node has no route to " + where}
	case errors.Is(err, syscall.EHOSTUNREACH):
		m := where + " is unreachable: no host answers there, or a router on the path reports it as unreachable"
		if !p.MultiHop && isExternal(p) {
			m += "; if it is not on the same link it needs ebgpMultiHop"
		}
		return cause{routes.Unreachable, m}
	case errors.As(err, &timeout) && timeout.Timeout():
		m := where + " does not answer: is it up, does a filter drop this node's packets"
		if p.Password != "" {
			m += ", and is the password the same on both sides"
		} else {
			m += ", and does it require a password"
		}
		if p.TTLSecurity {
			m += ", and is it on the same link"
		}
		return cause{routes.NoAnswer, m + "?"}
	case errors.Is(err, syscall.ENOPROTOOPT), strings.Contains(err.Error(), "setsockopt"):
		return cause{routes.NotConfigured, fmt.Sprintf("the kernel rejects the options of the connection to %s: %v", where, plain(err))}
	}
	return cause{routes.Unreachable, fmt.Sprintf("no connection to %s: %v", where, plain(err))}
}

// isOwn reports whether this node has the address.
func isOwn(addr netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		own, is := a.(*net.IPNet)
		return is && own.IP.Equal(addr.AsSlice())
	})
}

// noInterface returns an error if this node has no interface with the name in the zone of the router's address.
func noInterface(p routes.Peer) error {
	zone := p.Address.Zone()
	if zone == "" {
		return nil
	}
	if _, err := net.InterfaceByName(zone); err != nil && strings.Contains(err.Error(), "no such network interface") { // package net does not export it
		return fmt.Errorf("peerAddress: this node has no interface %s: name an existing one, or exclude this node by nodeSelectors", zone)
	}
	return nil
}

// plain returns an error without the addresses, which contain changing ports.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

const (
	closesAtOnce = "the router closes the connection at once: does it have this node's address as a neighbor?"
	sendsNothing = "the router accepts the connection and sends nothing"
)

var silent = cause{routes.HoldTimeExpired, "nothing was received from the router for the hold time: check the path, the router and ttlSecurity"}

// refusing returns why this side sends a NOTIFICATION for the router's message.
func refusing(e *bgp.MessageError, p routes.Peer) cause {
	if e.TypeCode == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && e.SubTypeCode == bgp.BGP_ERROR_SUB_BAD_PEER_AS {
		return cause{routes.WrongASN, wrongASN(e.Message, p)}
	}
	if e.TypeCode == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && e.SubTypeCode == bgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER {
		return cause{routes.NotConfigured, fmt.Sprintf("routerID: the router has the same as this node, or none: %s", e.Message)}
	}
	if e.TypeCode == bgp.BGP_ERROR_HOLD_TIMER_EXPIRED {
		return silent
	}
	return cause{routes.Rejected, fmt.Sprintf("this node rejects the router's message: %s: %s", bgp.NewNotificationErrorCode(e.TypeCode, e.SubTypeCode), e.Message)}
}

// wrongASN returns which AS the router has and where to configure it, from GoBGP's message (ValidateOpenMsg in
// validate.go).
func wrongASN(msg string, p routes.Peer) string {
	var expected, has uint32
	if _, err := fmt.Sscanf(msg, "as number mismatch expected %d, received %d", &expected, &has); err != nil {
		return "the router's AS differs from the BGPPeer: " + msg
	}
	switch p.Dynamic {
	case view.AnyInternal:
		return fmt.Sprintf("the router has AS %d, and dynamicASN: internal requires this node's own, %d: set dynamicASN: external, or peerASN: %d", has, expected, has)
	case view.AnyExternal:
		return fmt.Sprintf("the router has AS %d, and had %d when it was queried: it will be queried again", has, expected)
	}
	return fmt.Sprintf("the router has AS %d: set peerASN to it (now %d)", has, expected)
}

// refused returns why the router sends a NOTIFICATION.
func refused(f golog.Fields) cause {
	code, _ := f["Code"].(uint8)
	sub, _ := f["Subcode"].(uint8)
	communicated, _ := f["Communicated-Reason"].(string)
	return notified(code, sub, communicated)
}

func notified(code, sub uint8, communicated string) cause {
	reason := routes.Rejected
	switch {
	case code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && sub == bgp.BGP_ERROR_SUB_BAD_PEER_AS:
		reason = routes.WrongASN
	case code == bgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		reason = routes.HoldTimeExpired
	}
	words := fmt.Sprintf("the router sent a NOTIFICATION: %s", bgp.NewNotificationErrorCode(code, sub))
	if reason == routes.WrongASN {
		words += ": it expects another AS of this node (myASN, localASN)"
	}
	if communicated != "" {
		words += fmt.Sprintf(": %q", communicated)
	}
	return cause{reason, words}
}

// changing records a change of GoBGP's state machine; its event follows.
func (s *session) changing(from, to, reason string) {
	if to != "BGP_FSM_IDLE" && to != "-1" {
		return
	}
	switch from {
	case "BGP_FSM_OPENSENT", "BGP_FSM_OPENCONFIRM":
		if s.pending.reason != "" {
			return
		}
		switch reason {
		case "invalid-msg": // GoBGP ignores a NOTIFICATION that arrives before the session is up
			s.refusalUnknown = true
			if s.fail.reason != routes.WrongASN && s.fail.reason != routes.Rejected {
				s.pending = cause{routes.Rejected, "the router refuses the session: does it expect another AS of this node (myASN, localASN)?"}
			}
		case "read-failed":
			if s.fail.reason == routes.Rejected || s.fail.reason == routes.WrongASN {
				return // routers accept nothing for a while after a refusal
			}
			s.pending = cause{routes.Refused, closesAtOnce}
		case "hold-timer-expired":
			s.pending = cause{routes.NoAnswer, sendsNothing}
		}
	case "BGP_FSM_ESTABLISHED":
		s.broken = reason == "graceful-restart"
		if s.pending.reason == "" {
			s.pending = cause{routes.Unreachable, "the connection to the router broke (" + reason + ")"}
		}
	}
}
