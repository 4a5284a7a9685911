package pools_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/pools"
)

func TestRangePrefixes(t *testing.T) {
	for entry, want := range map[string]string{
		"192.0.2.0/28":                "[192.0.2.0/28]",
		"192.0.2.7":                   "[192.0.2.7/32]",
		"192.0.2.1-192.0.2.14":        "[192.0.2.1/32 192.0.2.2/31 192.0.2.4/30 192.0.2.8/30 192.0.2.12/31 192.0.2.14/32]",
		"198.51.100.0-198.51.101.255": "[198.51.100.0/23]",
		"2001:db8::-2001:db8::8":      "[2001:db8::/125 2001:db8::8/128]",
		"2001:db8::ff-2001:db8::100":  "[2001:db8::ff/128 2001:db8::100/128]",
	} {
		r, err := pools.ParseRange(entry)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Prefixes()); got != want {
			t.Errorf("%s: %s, want %s", entry, got, want)
		}
	}
	all := pools.Range{First: netip.IPv4Unspecified(), Last: netip.MustParseAddr("255.255.255.255")}
	if got := fmt.Sprint(all.Prefixes()); got != "[0.0.0.0/0]" {
		t.Errorf("every address: %s", got)
	}
}
