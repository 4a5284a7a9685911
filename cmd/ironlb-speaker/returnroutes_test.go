package main

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// The driver of return routes is open only while there are any, and each node removes what an earlier process left.
func TestReturnRoutesAreClosed(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "192.0.2.1/24")
	s.Must(t, func() error {
		r := &returnRoutes{}
		defer r.close()
		want := []ipvs.ReturnRoute{{
			Gateway: netip.MustParseAddr("192.0.2.254"), Interface: "lo",
			Subnets:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25")},
		}}
		if done, err := r.Apply(t.Context(), want); err != nil || len(done) != 1 || r.driver == nil {
			return errors.Join(err, errors.New("the route is not in effect, or the driver is not open"))
		}
		r.close() // as at the end of a process
		for range 2 {
			if done, err := r.Apply(t.Context(), nil); err != nil || len(done) > 0 || r.driver != nil {
				t.Errorf("without routes: %v in effect, driver open %v, error %v", done, r.driver != nil, err)
			}
		}
		done, err := r.Apply(t.Context(), want)
		if intact, checkErr := r.Check(t.Context()); len(done) != 1 || !intact {
			t.Errorf("again: %v in effect, intact %v", done, intact)
		} else {
			err = errors.Join(err, checkErr)
		}
		return err
	})
}
