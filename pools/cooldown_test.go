package pools

import (
	"net/netip"
	"testing"
	"time"
)

// TestRestoreFromAClockAhead checks a cool-down that begins in the future, by the clock of the previous leader. It
// lasts no longer than one that begins now.
func TestRestoreFromAClockAhead(t *testing.T) {
	ranges, err := ParseRanges([]string{"203.0.113.4/32"})
	if err != nil {
		t.Fatal(err)
	}
	a, now := New(), time.Unix(1000, 0)
	a.SetPools([]Pool{{Name: "p", Ranges: ranges, AutoAssign: true, ReuseAfter: time.Minute}})
	a.Restore([]CoolDown{{Addr: netip.MustParseAddr("203.0.113.4"), Freed: now.Add(time.Hour)}}, now)
	if at, ok := a.NextExpiry(); !ok || !at.Equal(now.Add(time.Minute)) {
		t.Errorf("it ends at %v, %v; want a minute after %v", at, ok, now)
	}
}
