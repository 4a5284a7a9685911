package link

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

func TestConnReuseModeByRelease(t *testing.T) {
	want := Sysctl{"net.ipv4.vs.conn_reuse_mode", "0"}
	for release, has := range map[string]bool{
		"4.19.0-21-amd64": true, "5.8.18": true, "5.9.0": false, "5.10.0-8": false, "6.1.0-44-amd64": false, "odd": false,
	} {
		if got := slices.Contains(wanted(release), want); got != has {
			t.Errorf("%s: sets conn_reuse_mode = %v, want %v", release, got, has)
		}
	}
}

func TestSetSysctls(t *testing.T) {
	s := netspace.New(t)
	want := []Sysctl{{"net.ipv4.conf.all.arp_ignore", "1"}, {"net.ipv4.ip_forward", "1"}}
	s.Sysctl(t, "net.ipv4.ip_forward", "1")
	s.Must(t, func() error {
		changes, err := SetSysctls(want)
		if expected := []Change{{"net.ipv4.conf.all.arp_ignore", "0", "1"}}; !slices.Equal(changes, expected) {
			t.Errorf("changes %v, want %v", changes, expected)
		}
		return err
	})
	s.Must(t, func() error {
		changes, err := SetSysctls(want)
		if len(changes) != 0 {
			t.Errorf("second time changes %v", changes)
		}
		value, readErr := os.ReadFile("/proc/sys/net/ipv4/conf/all/arp_ignore")
		if string(value) != "1\n" {
			t.Errorf("arp_ignore is %q", value)
		}
		return errors.Join(err, readErr)
	})
}

// TestSysctlErrors sets one that no kernel has beside a good one.
func TestSysctlErrors(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		changes, err := SetSysctls([]Sysctl{
			{"net.ipv4.vs.nosuch", "1"}, {"net.ipv4.nosuch", "1"}, {"net.ipv4.conf.all.arp_announce", "2"},
		})
		if len(changes) != 1 || changes[0].Key != "net.ipv4.conf.all.arp_announce" {
			t.Errorf("changes %v, want arp_announce alone", changes)
		}
		for _, text := range []string{"net.ipv4.vs.nosuch (module ip_vs missing", "modprobe ip_vs", "net.ipv4.nosuch:"} {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, want %q in it", err, text)
			}
		}
		return nil
	})
}
