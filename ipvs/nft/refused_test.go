package nft_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
)

// TestOneElementRefused: an element that the kernel refuses changes nothing in its family, and the tables need not be
// rebuilt. All other elements can be sent again without it.
func TestOneElementRefused(t *testing.T) {
	real, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
case " $* " in *" -f "*) input=$(cat);; *) exec ` + real + ` "$@";; esac
case "$input" in *2001:db8::66*|*198.51.100.66*) echo 'Error: Could not process rule: No space left on device' >&2; exit 1;; esac
printf '%s\n' "$input" | ` + real + ` "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := newNode(t)
	pod := func(text string) ipvs.Element {
		return ipvs.Element{Set: ipvs.Pods}.From(netip.MustParsePrefix(text))
	}
	have := filter(pod("198.51.100.128/25"), pod("2001:db8:1::/64"))
	n.apply(t, have)
	good, refused := []ipvs.FilterChange{
		{Element: pod("198.51.100.0/24")}, {Element: pod("198.51.100.128/25"), Delete: true}, {Element: pod("2001:db8:2::/64")},
	}, ipvs.FilterChange{Element: pod("2001:db8::66/128")}
	update := func(fails bool, changes ...ipvs.FilterChange) {
		t.Helper()
		n.Must(t, func() error {
			if _, err := n.filter.Update(context.Background(), changes); (err != nil) != fails {
				t.Errorf("Update = %v, want an error: %v", err, fails)
			}
			return nil
		})
		n.wantIntact(t, true)
	}
	update(true, append(good, refused)...)
	n.wantListed(t, filter(pod("198.51.100.0/24"), pod("2001:db8:1::/64")))
	update(false, good...) // IPv4's is done
	n.wantListed(t, filter(pod("198.51.100.0/24"), pod("2001:db8:1::/64"), pod("2001:db8:2::/64")))
	update(true, refused)
	update(true, ipvs.FilterChange{Element: pod("198.51.100.66/32"), Delete: false}, ipvs.FilterChange{Element: pod("198.51.100.0/24"), Delete: true})
	update(false, ipvs.FilterChange{Element: pod("198.51.100.0/25")}) // within another: kept for when that is deleted
	update(false, ipvs.FilterChange{Element: pod("198.51.100.0/24"), Delete: true})
	n.wantListed(t, filter(pod("198.51.100.0/25"), pod("2001:db8:1::/64"), pod("2001:db8:2::/64")))
}
