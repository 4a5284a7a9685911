package ccm

import (
	"testing"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/ccm/warnings"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		class, mode string
		good        bool
	}{
		{"ironlb.io/lb", "Proxy", true}, {"internal", "VIP", true}, {"", "Proxy", false}, {"a b", "Proxy", false}, {"a", "proxy", false}, {"a", "", false},
	} {
		s := Settings{Settings: warnings.Settings{Scope: servicerecord.Scope{Class: c.class, IPMode: c.mode}}}
		if err := s.Validate(); (err == nil) != c.good {
			t.Errorf("%q %q: %v", c.class, c.mode, err)
		}
	}
}
