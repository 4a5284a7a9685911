package ipvs_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

func TestDisjoint(t *testing.T) {
	var in []netip.Prefix
	for _, s := range []string{"10.1.2.3/16", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32", "2001:db8::1/64", "2001:db8::/64", "192.0.2.1/32", "2001:db8::2/128"} {
		in = append(in, netip.MustParsePrefix(s))
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/64")}
	if got := ipvs.Disjoint(append(in, netip.Prefix{})); !slices.Equal(got, want) {
		t.Errorf("it is %v, want %v", got, want)
	}
	if got := ipvs.Disjoint([]netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0")}); len(got) != 2 {
		t.Errorf("of both families it is %v", got)
	}
}
