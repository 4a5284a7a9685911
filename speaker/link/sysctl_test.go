package link

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
)

func TestConnReuseModeByRelease(t *testing.T) {
	want := Sysctl{Key: "net.ipv4.vs.conn_reuse_mode", Value: "0"}
	for release, has := range map[string]bool{
		"4.19.0-21-amd64": true, "5.8.18": true, "5.9.0": false, "5.10.0-8": false, "6.1.0-44-amd64": false, "odd": false,
	} {
		if got := slices.Contains(ipvsSysctls(release), want); got != has {
			t.Errorf("%s: sets conn_reuse_mode = %v, want %v", release, got, has)
		}
	}
}

func TestSetSysctls(t *testing.T) {
	s := netspace.New(t)
	want := []Sysctl{
		{Key: "net.ipv4.conf.all.arp_ignore", Value: "1"}, {Key: "net.ipv4.ip_forward", Value: "1"},
	}
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

// TestStricterSysctls: a stricter value stays, and counts as met; a value that is only greater does not.
func TestStricterSysctls(t *testing.T) {
	for value, want := range map[string]string{"0": "1", "1": "1", "2": "2", "3": "1", "4": "1", "8": "8"} {
		s := netspace.New(t)
		s.Sysctl(t, "net.ipv4.conf.all.arp_ignore", value)
		s.Must(t, func() error {
			wanted, err := Wanted(Needs{})
			if err != nil {
				return err
			}
			if _, err := SetSysctls(wanted); err != nil {
				return err
			}
			got, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/arp_ignore")
			if strings.TrimSpace(string(got)) != want {
				t.Errorf("arp_ignore=%s became %q, want %s", value, got, want)
			}
			var m SysctlWatch
			defer m.Open(nil)
			if m.Open(wanted); !m.Met() {
				t.Errorf("arp_ignore=%s does not count as met", want)
			}
			return err
		})
	}
}

// TestSysctlErrors sets parameters that no kernel has together with a valid one.
func TestSysctlErrors(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		changes, err := SetSysctls([]Sysctl{
			{Key: "net.ipv4.vs.nosuch", Value: "1"}, {Key: "net.ipv4.nosuch", Value: "1"}, {Key: "net.ipv6.nosuch", Value: "1"},
			{Key: "net.netfilter.nosuch", Value: "1"}, {Key: "net.ipv4.conf.all.arp_announce", Value: "2"},
		})
		if len(changes) != 1 || changes[0].Key != "net.ipv4.conf.all.arp_announce" {
			t.Errorf("changes %v, want arp_announce alone", changes)
		}
		for _, text := range []string{"net.ipv4.vs.nosuch (module ip_vs missing", "modprobe ip_vs", "net.ipv4.nosuch:",
			"modprobe nf_conntrack", "IPv6 is off"} {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, want %q in it", err, text)
			}
		}
		return nil
	})
}

// TestRelies: a parameter that relies on others is skipped while one of them fails.
func TestRelies(t *testing.T) {
	s := netspace.New(t)
	s.Must(t, func() error {
		changes, err := SetSysctls([]Sysctl{{Key: "net.ipv6.conf.nosuch.accept_ra", Value: "2"}, {Key: forwarding6, Value: "1", Relies: true}})
		if err == nil || len(changes) != 0 {
			t.Errorf("changes %v, error %v; want none, and the error of accept_ra", changes, err)
		}
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding")
		if string(value) != "0\n" {
			t.Errorf("forwarding is %q, and router advertisements are not accepted any more", value)
		}
		return err
	})
}

// TestSysctlWatch: every check detects a changed, missing or unreadable parameter.
func TestSysctlWatch(t *testing.T) {
	s := netspace.New(t)
	netspace.Join(t, netspace.New(t), "eth0", "192.0.2.2/24", s, "eth0", "192.0.2.1/24")
	want := []Sysctl{{Key: "net.ipv4.ip_forward", Value: "1"}, {Key: "net.ipv4.conf.eth0.arp_ignore", Value: "1"}}
	var m SysctlWatch
	defer m.Open(nil)
	still := func(expected bool, when string) {
		t.Helper()
		if got := m.Met(); got != expected {
			t.Errorf("%s: %t, want %t", when, got, expected)
		}
	}
	still(false, "nothing known")
	s.Must(t, func() error {
		_, err := SetSysctls(want)
		m.Open(want)
		return err
	})
	for range 2 {
		still(true, "as set")
	}
	s.Sysctl(t, "net.ipv4.conf.eth0.arp_ignore", "0")
	still(false, "changed")
	s.Sysctl(t, "net.ipv4.conf.eth0.arp_ignore", "1")
	still(true, "changed back")
	s.Must(t, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(eth0)
	})
	still(false, "its interface is gone")
	s.Must(t, func() error { m.Open(want); return nil })
	still(false, "one cannot be read")
}

// TestConntrackSysctls: kube-proxy's values; a larger table stays.
func TestConntrackSysctls(t *testing.T) {
	for cpus, want := range map[int]string{1: "131072", 4: "131072", 8: "262144", 64: "1048576"} {
		if got := conntrackSysctls(cpus)[0]; got.Value != want || got.Key != "net.netfilter.nf_conntrack_max" {
			t.Errorf("%d processors: %v, want nf_conntrack_max=%s", cpus, got, want)
		}
	}
	max := conntrackSysctls(8)[0]
	for value, met := range map[string]bool{"262143": false, "262144": true, "999999": true, "odd": false} {
		if max.met(value) != met {
			t.Errorf("%s is enough: %t, want %t", value, !met, met)
		}
	}
	s := netspace.New(t)
	s.Must(t, func() error {
		_, err := SetSysctls(conntrackSysctls(1)[1:])
		return err
	})
	for key, want := range map[string]string{"established": "86400\n", "close_wait": "3600\n"} {
		s.Must(t, func() error {
			value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + key)
			if string(value) != want {
				t.Errorf("%s is %q, want %q", key, value, want)
			}
			return err
		})
	}
}

// TestNeeds: each feature alone adds its parameters.
func TestNeeds(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		for _, c := range []struct {
			needs Needs
			key   string
		}{
			{Needs{IPVS: true}, "net.ipv4.vs.conntrack"},
			{Needs{IPv6: true}, "net.ipv6.conf.all.forwarding"},
			{Needs{ServiceProxy: true}, "net.netfilter.nf_conntrack_max"},
		} {
			for _, needs := range []Needs{{}, c.needs} {
				sysctls, err := Wanted(needs)
				if err != nil {
					return err
				}
				has := slices.ContainsFunc(sysctls, func(s Sysctl) bool { return s.Key == c.key })
				if has != (needs == c.needs) {
					t.Errorf("%+v: has %s = %t", needs, c.key, has)
				}
			}
		}
		return nil
	})
}
