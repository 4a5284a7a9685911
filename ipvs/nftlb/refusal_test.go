package nftlb_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// TestRefusal: if the kernel refuses a part about one virtual server, the others are done and the error names its ops.
// If nft does not work at all, nothing is done: a wrapper program then ends with an error.
func TestRefusal(t *testing.T) {
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
case "$*" in *-f*)
	input=$(cat)
	case $input in *$REFUSE_ALL*) echo "Error: refused" >&2; exit 1;; esac
	echo "$input" | exec ` + program + ` "$@";;
esac
[ "$REFUSE_ALL" = add ] && exit 1
exec ` + program + ` "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("REFUSE_ALL", "nothing")
	d := open(t, netspace.New(t), nftlb.AllTraffic)

	want := make(ipvs.Table)
	for i := range 9 {
		want[ipvs.Key{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(62 + i)}), Protocol: ipvs.TCP, Port: 80}] = server("rr", 1)
	}
	bad := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.66"), Protocol: ipvs.TCP, Port: 80}
	d.RefuseWith(errors.New("refused"), bad.Addr.AsSlice())
	ops := ipvs.Diff(nil, want)
	done, err := d.Apply(ops)
	if err == nil || len(done) != len(ops)-2 || strings.Count(err.Error(), bad.String()) != 2 || strings.Count(err.Error(), "refused") != 2 {
		t.Errorf("%d of %d ops done, error %v; want all but the two of %v", len(done), len(ops), err, bad)
	}
	delete(want, bad)
	sameEverywhere(t, d, want)

	t.Setenv("REFUSE_ALL", "add")
	d.RefuseWith(errors.New("refused"), nil)
	if done, err := d.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: web, Settings: rr}}); err == nil || len(done) != 0 {
		t.Errorf("while nft does not work: %v done, error %v", done, err)
	}
	t.Setenv("REFUSE_ALL", "nothing")
	sameEverywhere(t, d, want)
}
