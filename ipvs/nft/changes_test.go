package nft_test

import (
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/nft"
)

// TestCheckListsOnlyAfterAChange: nothing is listed while nobody else touched our table, whatever we or others do beside it.
func TestCheckListsOnlyAfterAChange(t *testing.T) {
	n := newNode(t)
	n.apply(t, web(), size(web()))
	n.wantSuspect(t, false, "after building it")
	n.apply(t, ipvs.Firewall{}, size(web()))
	n.wantSuspect(t, false, "after a change of ours")
	n.nft(t, "add", "table", "ip", "other")
	n.nft(t, "add", "table", "ip6", nft.TableName)
	n.wantSuspect(t, false, "after changes of other tables")
	n.nft(t, "add", "chain", "ip", nft.TableName, "stranger")
	n.wantSuspect(t, true, "after a change by another program")
	n.wantIntact(t, false)
}

// TestChangeBetweenOurs: a change by another program is not taken for ours when both come before the next look.
func TestChangeBetweenOurs(t *testing.T) {
	n := newNode(t)
	n.apply(t, web(), size(web()))
	n.nft(t, "add", "chain", "ip", nft.TableName, "stranger")
	n.apply(t, ipvs.Firewall{}, size(web()))
	n.wantSuspect(t, true, "after a change by another program and one of ours")
	n.wantIntact(t, false)
}

func (n node) wantSuspect(t *testing.T, want bool, when string) {
	t.Helper()
	if got := n.firewall.Suspect(); got != want {
		t.Errorf("%s the table is suspect: %t, want %t", when, got, want)
	}
}

// FuzzTableOf: no message makes the parser fail.
func FuzzTableOf(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 11, 0, 1, 0, 'i', 'r', 'o', 'n', 'l', 'b', 0, 0})
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) { nft.TableOf(data) })
}

func size(fw ipvs.Firewall) int { return len(fw.Addrs) + len(fw.Served) + len(fw.Masquerade) }
