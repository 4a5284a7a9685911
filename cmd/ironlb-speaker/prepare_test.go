package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/ipvs/nftlb"
)

// Before a speaker restarts, its node is prepared as configured, and continues to forward meanwhile.
func TestPrepareAsConfigured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "speaker.yaml")
	if err := os.WriteFile(file, []byte("dataplane: nftables\nserviceProxy: true\nconntrack: {tcpEstablishedTimeout: 2h}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := netspace.New(t)
	s.Must(t, func() error {
		b, err := nftlb.New(nftlb.AllTraffic)
		if err != nil {
			return err
		}
		defer b.Close()
		key := ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
		if _, err := b.Apply([]ipvs.Op{{Action: ipvs.AddVirtual, Virtual: key, Settings: ipvs.Settings{Scheduler: "rr"}}}); err != nil {
			return err
		}
		cmd := command()
		cmd.SetArgs([]string{"prepare", "--config", file})
		if err := cmd.Execute(); err != nil {
			return err
		}
		if virtuals, err := b.Virtuals(); err != nil || len(virtuals) != 1 {
			t.Errorf("virtual servers %v, %v", virtuals, err)
		}
		got, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
		if err != nil || strings.TrimSpace(string(got)) != "7200" {
			t.Errorf("nf_conntrack_tcp_timeout_established is %q, %v", got, err)
		}
		return nil
	})
}

// IPv6 forwarding is enabled if the configuration requests it, as deploy/ must be able to, and otherwise unchanged.
func TestPrepareForwardsIPv6OnlyIfConfigured(t *testing.T) {
	for text, want := range map[string]string{"": "0", "ipv6Forwarding: false": "0", "ipv6Forwarding: true": "1"} {
		file := filepath.Join(t.TempDir(), "speaker.yaml")
		if err := os.WriteFile(file, []byte("dataplane: nftables\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := netspace.New(t)
		s.Sysctl(t, "net.ipv6.conf.all.forwarding", "0")
		s.Must(t, func() error {
			cmd := command()
			cmd.SetArgs([]string{"prepare", "--config", file})
			if err := cmd.Execute(); err != nil {
				return err
			}
			got, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding")
			if err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%q: forwarding is %q, %v, want %s", text, got, err, want)
			}
			return nil
		})
	}
}

// A kernel without IPVS is an error only for dataplane ipvs.
func TestPrepareReportsNoErrorWithoutIPVS(t *testing.T) {
	for _, kind := range []dataplaneKind{dataplaneAuto, dataplaneNFTables, dataplaneIPVS} {
		s := netspace.New(t)
		s.Sysctl(t, "net.ipv4.ip_forward", "0")
		s.Must(t, func() error {
			absent := errors.Is(probeKernel(ipvs.RoundRobin), ipvs.ErrNoModule)
			c, log := newConfig(), &strings.Builder{}
			c.Dataplane = kind
			prepare(c, slog.New(slog.NewTextHandler(log, nil)))
			if got, want := strings.Contains(log.String(), "level=ERROR"), absent && kind == dataplaneIPVS; got != want {
				t.Errorf("dataplane %s: an error is logged: %t, want %t\n%s", kind, got, want, log)
			}
			if got, want := strings.Contains(log.String(), "uses nftables"), absent && kind == dataplaneAuto; got != want {
				t.Errorf("dataplane %s: the choice of nftables is logged: %t, want %t\n%s", kind, got, want, log)
			}
			if !strings.Contains(log.String(), "net.ipv4.ip_forward=1") {
				t.Errorf("dataplane %s: the sysctl that was set is not logged\n%s", kind, log)
			}
			return nil
		})
	}
}
