package ccm

import (
	"testing"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/warnings"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		class, mode string
		good        bool
	}{
		{"ironlb.io/lb", "Proxy", true}, {"internal", "VIP", true}, {"", "Proxy", false}, {"a b", "Proxy", false}, {"a", "proxy", false}, {"a", "", false},
	} {
		s := Settings{Settings: warnings.Settings{Scope: servicerecord.Scope{Class: c.class, IPMode: c.mode, Forwarding: "pod"}}}
		if err := s.Validate(); (err == nil) != c.good {
			t.Errorf("%q %q: %v", c.class, c.mode, err)
		}
	}
	for forwarding, good := range map[v1alpha1.Forwarding]bool{"pod": true, "direct": true, "nodeport": false, "": false} {
		s := DefaultSettings()
		s.Forwarding = forwarding
		if err := s.Validate(); (err == nil) != good {
			t.Errorf("%q: %v", forwarding, err)
		}
	}
}
