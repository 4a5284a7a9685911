package nft_test

import (
	"testing"

	"github.com/ironlb/ironlb/ipvs/nft"
)

// TestOnlyForeignChangesAreNoticed: own changes, and foreign changes outside the tables, are not detected.
func TestOnlyForeignChangesAreNoticed(t *testing.T) {
	for _, family := range []string{"ip", "ip6"} {
		n := newNode(t)
		n.apply(t, web())
		n.wantNoticed(t, false, "after building it")
		n.apply(t, everything())
		n.wantNoticed(t, false, "after a change of ours")
		n.nft(t, "add", "table", family, "other")
		n.nft(t, "add", "table", "inet", nft.TableName)
		n.wantNoticed(t, false, "after changes of other tables")
		n.nft(t, "add", "chain", family, nft.TableName, "foreign")
		n.wantNoticed(t, true, "after a change by another program")
		n.wantIntact(t, false)
	}
}

// TestLostNotifications: after lost notifications the tables are listed, and the list decides.
func TestLostNotifications(t *testing.T) {
	n := newNode(t)
	n.apply(t, everything())
	n.filter.Lose()
	n.wantIntact(t, true)
	n.nft(t, "add", "chain", "ip", nft.TableName, "foreign")
	n.filter.Lose()
	n.wantIntact(t, false)
}

// TestChangeBetweenOurs: a foreign change does not count as an own one when both come before the next check.
func TestChangeBetweenOurs(t *testing.T) {
	n := newNode(t)
	n.apply(t, web())
	n.nft(t, "add", "chain", "ip", nft.TableName, "foreign")
	n.apply(t, everything())
	n.nft(t, "add", "chain", "ip6", nft.TableName, "foreign")
	n.wantNoticed(t, true, "after a change by another program and one of ours")
	n.wantIntact(t, false)
}

func (n *node) wantNoticed(t *testing.T, want bool, when string) {
	t.Helper()
	if got := n.filter.Noticed(); got != want {
		t.Errorf("%s a change is noticed: %t, want %t", when, got, want)
	}
}
