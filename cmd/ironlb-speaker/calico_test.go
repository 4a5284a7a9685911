package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

// On a node that Calico polices, auto selects nftables also after a boot, when the speaker starts before Calico, until
// Calico is removed permanently. Without stateDir only the current detection counts.
func TestCalicoIsRecorded(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		dir := filepath.Join(t.TempDir(), "state")
		start := func(dir string, seen bool) (*calico, dataplaneKind) {
			o := options{nodeName: "a", config: newConfig()}
			o.config.Dataplane, o.config.StateDir = dataplaneAuto, dir
			c := newCalico(o, slog.New(slog.DiscardHandler))
			c.observe = func() (bool, error) { return seen, nil }
			var reported dataplaneKind
			v := newVirtualServers(o.config, c.log, func(kind dataplaneKind) { reported = kind }, nil)
			v.calico = c.policesOrDid
			v.openIPVS = func(config) (driver, error) { return ipvstest.NewKernel(), nil }
			v.loadedIPVS = func() (ipvsTable, error) { return nil, ipvs.ErrNoModule }
			if _, err := v.Virtuals(); err != nil {
				t.Error(err)
			}
			v.close()
			return c, reported
		}
		check := func(c *calico, seen bool) {
			c.observe = func() (bool, error) { return seen, nil }
			if polices, err := c.polices(); polices != seen || err != nil {
				t.Errorf("polices: %t, %v; want %t", polices, err, seen)
			}
		}
		expect := func(when string, got, want dataplaneKind) {
			if got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		c, kind := start(dir, false)
		expect("never seen", kind, dataplaneIPVS)
		check(c, true) // Calico starts after the speaker
		c, kind = start(dir, false)
		expect("after a boot", kind, dataplaneNFTables)
		check(c, false)
		c, kind = start(dir, false)
		expect("soon after a start", kind, dataplaneNFTables)
		c.began = c.began.Add(-calicoGone)
		check(c, false)
		_, kind = start(dir, false)
		expect("Calico is gone", kind, dataplaneIPVS)
		_, kind = start(dir, true)
		expect("seen at the start", kind, dataplaneNFTables)
		_, kind = start(dir, false)
		expect("seen at the start before", kind, dataplaneNFTables)

		files, err := os.ReadDir(dir)
		if len(files) != 1 || files[0].Name() != "calico-a" {
			t.Errorf("files: %v, %v", files, err)
		}
		if err := removeState(dir, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		if files, err := os.ReadDir(dir); len(files) != 0 {
			t.Errorf("left: %v, %v", files, err)
		}
		c, kind = start("", false)
		check(c, true)
		_, again := start("", false)
		if kinds := []dataplaneKind{kind, again}; !slices.Equal(kinds, []dataplaneKind{dataplaneIPVS, dataplaneIPVS}) {
			t.Errorf("without stateDir: %v", kinds)
		}
		return nil
	})
}
