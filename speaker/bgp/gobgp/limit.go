package gobgp

import (
	"cmp"
	"fmt"

	"github.com/ironlb/ironlb/speaker/routes"
)

// GoBGP stores the announcements of a router before it applies the import policy, which accepts nothing (handleUpdate
// in its peer.go). So the number of prefixes is limited. One more ends the session (RFC 4486, 4: Cease, subcode 1), and
// the peer stays idle (adminStatePfxCt in its fsm.go). GoBGP continues to store what it has read by then, slower with
// each UPDATE, and reports the end of the session only after that. So the session counts as ended at once, and the
// process is replaced.

// prefixLimit is the number of prefixes that a router may announce in each family.
func prefixLimit(p routes.Peer) uint32 { return cmp.Or(p.MaxReceivedPrefixes, maxReceivedPrefixes) }

// limitReached records that GoBGP ends the session for the number of prefixes of a family. s.mu must be held.
func (s *session) limitReached(family string) {
	if s.overLimit {
		return
	}
	s.overLimit = true
	// The session is established, but GoBGP's event may not have arrived yet.
	s.setState(routes.SessionEstablished)
	names := map[string]string{"ipv4-unicast": "IPv4", "ipv6-unicast": "IPv6"} // GoBGP's
	s.pending = cause{routes.TooManyPrefixes, fmt.Sprintf("the router announced more than %d %s prefixes "+
		"(maxReceivedPrefixes): announce fewer to this node, which uses none, or raise maxReceivedPrefixes",
		prefixLimit(s.peer), cmp.Or(names[family], family))}
	s.setState(routes.SessionIdle)
}
