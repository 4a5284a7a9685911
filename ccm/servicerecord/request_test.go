package servicerecord

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// FuzzRequestedAddresses: the requested addresses are valid, without zone and not IPv4 in IPv6; each entry of a text
// that is read is an address or is reported, and the same addresses come from the synonym and in canonical form.
func FuzzRequestedAddresses(f *testing.F) {
	for _, text := range []string{"", "192.0.2.1", " 192.0.2.1 ,2001:DB8::1", "::ffff:192.0.2.1", "fe80::1%eth0", ",", "192.0.2.1,x", strings.Repeat("1", 300)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read := func(field, text string) ([]netip.Addr, []string) {
			var bad []string
			return requestedAddresses(ccmtest.ServiceFor("s", ccmtest.Annotate(field, text)), &bad), bad
		}
		got, bad := read(v1alpha1.AnnotationAddresses, text)
		var canonical []string
		for _, a := range got {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%q: %v", text, a)
			}
			canonical = append(canonical, a.String())
		}
		entries := 0
		if trimmed := strings.TrimSpace(text); trimmed != "" && len(trimmed) <= maxText {
			entries = 1 + strings.Count(trimmed, ",")
		} else if trimmed != "" {
			entries = 1 // one report for all
		}
		if len(got)+len(bad) != entries {
			t.Errorf("%q: %v and %q of %d entries", text, got, bad, entries)
		}
		if synonym, _ := read(MetallbAddresses, text); !sameSet(got, synonym) {
			t.Errorf("%q: %v, as the synonym %v", text, got, synonym)
		}
		if short := strings.Join(canonical, ","); len(short) <= maxText {
			if again, bad := read(v1alpha1.AnnotationAddresses, short); !sameSet(got, again) || len(bad) > 0 {
				t.Errorf("%q: %v, again %v, %q", text, got, again, bad)
			}
		}
	})
}
