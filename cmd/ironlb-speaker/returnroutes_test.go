package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

func exampleReturnRoutes() []ipvs.ReturnRoute {
	return []ipvs.ReturnRoute{{
		Gateway: netip.MustParseAddr("192.0.2.254"), Interface: "lo",
		Subnets:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25")},
	}}
}

// cleanup removes the return routes of an earlier process, and no rule or route of others.
func TestCleanupOfReturnRoutes(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "192.0.2.1/24")
	s.Must(t, func() error {
		state := func() string {
			out, err := exec.Command("sh", "-ec", "ip rule; ip route show table all").CombinedOutput()
			if err != nil {
				t.Fatalf("list rules and routes: %v: %s", err, out)
			}
			return string(out)
		}
		if out, err := exec.Command("ip", "rule", "add", "pref", "900", "fwmark", "7", "lookup", "99").CombinedOutput(); err != nil {
			return fmt.Errorf("add a rule: %w: %s", err, out)
		}
		foreign := state()
		r := &returnRoutes{}
		if done, err := r.Apply(t.Context(), exampleReturnRoutes()); err != nil || len(done) != 1 {
			return fmt.Errorf("%v in effect, error %w", done, err)
		}
		r.close() // as at the end of a process
		if all := state(); !strings.Contains(all, "lookup 7301") || !strings.Contains(all, "table 7301") {
			t.Errorf("the return routes have no rule or no route:\n%s", all)
		}
		if err := cleanup(t.Context(), "", slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		if got := state(); got != foreign {
			t.Errorf("after cleanup there are\n%s, want\n%s", got, foreign)
		}
		if tables, err := ourTables(t.Context()); err != nil || len(tables) > 0 {
			t.Errorf("after cleanup there are the tables %v, error %v", tables, err)
		}
		return nil
	})
}

// The driver of return routes is open only while there are any, and each node removes what an earlier process left.
func TestReturnRoutesAreClosed(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "192.0.2.1/24")
	s.Must(t, func() error {
		r := &returnRoutes{}
		defer r.close()
		want := exampleReturnRoutes()
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
