package health

import (
	"strconv"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

func TestWeight(t *testing.T) {
	for header, want := range map[string]uint32{
		"": 1, "0": 0, "1": 1, "42": 42, "65535": 65535, "65536": 65535, "99999999999999999999999": 65535,
		"-1": 1, "+1": 1, "1.5": 1, "0x10": 1, "many": 1, "1,2": 1,
	} {
		if got := weight(header); got != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	}
}

func FuzzWeight(f *testing.F) {
	for _, header := range []string{"", "0", "7", "65536", "-1", "999999999999999999999", "\x00"} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		got := weight(header)
		if got > ipvs.MaxWeight {
			t.Errorf("%q: %d, which no real server can have", header, got)
		}
		if n, err := strconv.ParseUint(header, 10, 32); err == nil && n <= ipvs.MaxWeight && uint64(got) != n {
			t.Errorf("%q: %d", header, got)
		}
	})
}
