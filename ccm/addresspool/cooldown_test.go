package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironlb/ironlb/ccm/ccmtest"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// cooling lists the cool-downs in the pool's status, without the times.
func cooling(obj *v1alpha1.IPAddressPool) string {
	var out []string
	for _, c := range obj.Status.CoolingDown {
		out = append(out, c.Address+" by "+c.FreedBy)
	}
	return strings.Join(out, ", ")
}

// TestCoolDownOutlivesTheLeader: the next leader gives a freed address only to the Service that freed it, until
// reuseAfter is over. Then the record is removed.
func TestCoolDownOutlivesTheLeader(t *testing.T) {
	web := webPool("203.0.113.4/30")
	web.Spec.ReuseAfter = &metav1.Duration{Duration: time.Minute}
	f := newFixture(t, web)
	clock := time.Now()
	lead := func() {
		f.ledger.Now = func() time.Time { return clock }
		if err := f.specs.apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.specs.restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.ledger.Adopt(nil)
	}
	lead()
	gone, back := ccmtest.ServiceFor("gone"), ccmtest.ServiceFor("back")
	ccmtest.Expect(t, f.assign(gone), "203.0.113.4 from pool web, Allocated")
	ccmtest.Expect(t, f.assign(back), "203.0.113.5 from pool web, Allocated")
	f.process()
	f.writes = 0
	for _, svc := range []string{"gone", "back"} {
		if err := f.ledger.Release(t.Context(), servicerecord.KeyOf(ccmtest.ServiceFor(svc)), "1"); err != nil {
			t.Fatal(err)
		}
		clock = clock.Add(time.Second)
	}
	ccmtest.Expect(t, cooling(f.process()), "203.0.113.5 by default/back, 203.0.113.4 by default/gone")
	if f.process(); f.writes != 1 {
		t.Errorf("%d writes, want one: with the counts", f.writes)
	}

	clock = clock.Add(30 * time.Second)
	f.lead()
	lead()
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("new")), "203.0.113.6 from pool web, Allocated")
	ccmtest.Expect(t, f.assign(back), "203.0.113.5 from pool web, Allocated")
	ccmtest.Expect(t, cooling(f.process()), "203.0.113.4 by default/gone")
	clock = clock.Add(27 * time.Second)
	f.ledger.Expire()
	ccmtest.Expect(t, cooling(f.process()), "203.0.113.4 by default/gone")
	clock = clock.Add(2 * time.Second) // the record has a resolution of one second
	f.ledger.Expire()
	ccmtest.Expect(t, cooling(f.process()), "")
	ccmtest.Expect(t, f.assign(ccmtest.ServiceFor("late")), "203.0.113.4 from pool web, Allocated")
}

// TestCoolDownsAreBounded: the status has the latest ones.
func TestCoolDownsAreBounded(t *testing.T) {
	var all []pools.CoolDown
	for i := range 2000 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		all = append(all, pools.CoolDown{Addr: addr, Freed: time.Unix(int64(9000-i), 1)})
	}
	got := coolingDown(all)
	if len(got) != 512 || got[511].Address != "10.0.1.255" || got[0].Freed.Unix() != 9001 {
		t.Errorf("%d, the last %v, the first %v", len(got), got[len(got)-1], got[0])
	}
}

// TestCoolDownsAreReadStrictly: an entry that a leader would not have written does not count, and the error names the
// field.
func TestCoolDownsAreReadStrictly(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	good := v1alpha1.CoolingAddress{Address: "2001:db8::1", Freed: now, FreedBy: "default/web"}
	with := func(change func(*v1alpha1.CoolingAddress)) v1alpha1.CoolingAddress {
		e := good
		change(&e)
		return e
	}
	address := func(text string) v1alpha1.CoolingAddress {
		return with(func(e *v1alpha1.CoolingAddress) { e.Address = text })
	}
	by := func(text string) v1alpha1.CoolingAddress {
		return with(func(e *v1alpha1.CoolingAddress) { e.FreedBy = text })
	}
	obj := webPool()
	obj.Status.CoolingDown = []v1alpha1.CoolingAddress{
		good, by(""),
		address(""), address("192.0.2.1/32"), address("2001:DB8::1"), address("::ffff:192.0.2.1"), address("fe80::1%eth0"),
		by("web"), by("default/"), by("a/b/c"), by("Default/web"),
		with(func(e *v1alpha1.CoolingAddress) { e.Freed = metav1.Time{} }),
	}
	got, wrong := coolDownsIn(obj)
	want := []pools.CoolDown{
		{Addr: netip.MustParseAddr("2001:db8::1"), Freed: now.Time, By: pools.ServiceKey{Namespace: "default", Name: "web"}},
		{Addr: netip.MustParseAddr("2001:db8::1"), Freed: now.Time},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	fields := slices.Concat(slices.Repeat([]string{"address"}, 5), slices.Repeat([]string{"freedBy"}, 4))
	fields = append(fields, "freed")
	if len(wrong) != len(fields) {
		t.Fatalf("%d errors, want %d: %v", len(wrong), len(fields), wrong)
	}
	for i, field := range fields {
		if at := fmt.Sprintf("status.coolingDown[%d].%s: ", i+2, field); !strings.HasPrefix(wrong[i].Error(), at) {
			t.Errorf("got %q, want %s...", wrong[i], at)
		}
	}
}

// FuzzReadCoolDown: a parsed entry is written back unchanged.
func FuzzReadCoolDown(f *testing.F) {
	f.Add("2001:db8::1", "default/web", int64(1000))
	f.Add("192.0.2.1", "", int64(1))
	f.Fuzz(func(t *testing.T, address, by string, freed int64) {
		e := v1alpha1.CoolingAddress{Address: address, Freed: metav1.NewTime(time.Unix(freed%1e10, 0)), FreedBy: by}
		c, err := readCoolDown(e)
		if err != nil {
			return
		}
		if again := coolingDown([]pools.CoolDown{c}); again[0] != e {
			t.Errorf("read %+v, wrote %+v", e, again[0])
		}
	})
}
