package gobgp

import (
	"sync"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/test/bench/capture"
	"github.com/ironlb/ironlb/test/lab/router"
)

// restartState is the R bit in the flags of the capability (RFC 4724, 3), in GoBGP's form.
const restartState = 0x08

// restartFlags returns the flags of the graceful restart capability in the body of an OPEN, 0 if it has none.
func restartFlags(body []byte) (flags uint8, err error) {
	m, err := bgp.ParseBGPBody(&bgp.BGPHeader{Type: bgp.BGP_MSG_OPEN, Len: uint16(bgp.BGP_HEADER_LENGTH + len(body))}, body)
	if err != nil {
		return 0, err
	}
	for _, option := range m.Body.(*bgp.BGPOpen).OptParams {
		capabilities, is := option.(*bgp.OptionParameterCapability)
		if !is {
			continue
		}
		for _, c := range capabilities.Capability {
			if restart, is := c.(*bgp.CapGracefulRestart); is {
				flags |= restart.Flags
			}
		}
	}
	return flags, nil
}

// TestRouterRestarts: a router that has restarted does not receive a restart state of this node.
func TestRouterRestarts(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, r *far) {
		var mu sync.Mutex
		var opens []uint8
		watch(t, f.node, func(p capture.Packet) bool {
			is := p.Outgoing && p.To.Addr() == r.link.router && len(p.Payload) > bgp.BGP_HEADER_LENGTH && p.Payload[18] == bgp.BGP_MSG_OPEN
			if is {
				flags, err := restartFlags(p.Payload[bgp.BGP_HEADER_LENGTH:])
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				opens = append(opens, flags)
				mu.Unlock()
			}
			return is
		})
		d := startNode(t, f.node)
		d.apply(t, both(r.graceful(t)))
		before := d.up(t, "r")
		r.table(t)
		if err := r.Router.Stop(); err != nil {
			t.Fatal(err)
		}
		d.session(t, "r", "down", func(s routes.Session) bool { return s.State != routes.SessionEstablished })
		var err error
		if r.Router, err = router.Kinds[r.kind](t.Context(), r.place, r.conf); err != nil {
			t.Fatal(err)
		}
		r.nextSession(t, d, before)
		mu.Lock()
		defer mu.Unlock()
		if len(opens) < 2 || opens[0]&restartState == 0 || opens[len(opens)-1]&restartState != 0 {
			t.Errorf("the OPENs had the flags %x, want the first one alone to be of a restart", opens)
		}
	})
}
