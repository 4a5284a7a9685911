package routes

import (
	"cmp"

	"github.com/ironlb/ironlb/speaker/view"
)

const (
	// gracefulShutdown is GRACEFUL_SHUTDOWN (RFC 8326, 6), lastPref the localPref with it. RFC 8326, 4.1 recommends 0,
	// but GoBGP's policies cannot set that (internal/pkg/table/policy.go, NewLocalPrefAction).
	gracefulShutdown = 65535 << 16
	lastPref         = 1
	// defaultPref is the localPref for internal peers if an advertisement has none.
	defaultPref = 100
)

// pref returns the localPref for internal peers.
func pref(a view.Attributes) uint32 { return cmp.Or(a.LocalPref, defaultPref) }

// lastResort returns the attributes of a route that is about to be withdrawn, so that routers prefer another (RFC
// 8326).
func lastResort(a view.Attributes) view.Attributes {
	a.Unite(view.Attributes{Communities: view.NewCommunitySet(gracefulShutdown)})
	a.LocalPref = lastPref
	return a
}
