package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
)

// Everything opened is closed when a later step fails, or at the end. A second speaker is refused before it changes
// anything.
func TestAssemble(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("not a very secret key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{nodeName: "a", kubeconfig: kubeconfig, metricsAddress: "127.0.0.1:7950", keyFile: keys, config: newConfig()}
	log := slog.New(slog.DiscardHandler)
	s := netspace.New(t)
	s.Must(t, func() error {
		for range 2 {
			p, err := assemble(o, log)
			if err != nil {
				return err
			}
			if _, err := assemble(o, log); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "--metrics-bind-address") {
				t.Errorf("a second speaker: %v", err)
			}
			p.close()
		}
		ended := 0
		p := &process{options: o, log: log}
		p.atEnd(func() { ended++ })
		p.atEnd(func() {
			if ended > 0 {
				t.Error("what was opened first is closed first")
			}
		})
		if p.close(); ended != 1 {
			t.Errorf("closed %d times", ended)
		}
		wrong := o
		wrong.kubeconfig += "-none"
		if _, err := assemble(wrong, log); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("without a kubeconfig: %v", err)
		}
		wrong = o
		wrong.keyFile += "-none"
		if _, err := assemble(wrong, log); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "--key-file") || !strings.Contains(err.Error(), "ironlb-speaker-keys") {
			t.Errorf("without keys: %v", err)
		}
		return nil
	})
}

// Health check ports listen exactly where the plan specifies; a failure is reported.
func TestHealthPortsAsPlanned(t *testing.T) {
	s := netspace.New(t)
	s.Address(t, "lo", "192.0.2.1/32")
	s.Address(t, "lo", "192.0.2.2/32")
	key := pools.ServiceKey{Namespace: "default", Name: "web"}
	var reported map[pools.ServiceKey]error
	ports := health.NewPorts(slog.New(slog.DiscardHandler), func() bool { return true })
	defer ports.Close()
	h := healthPorts{ports, func(failed map[pools.ServiceKey]error) { reported = failed }}
	set := func(addrs ...netip.Addr) (errs map[pools.ServiceKey]error) {
		s.Must(t, func() error {
			errs = h.Set(map[pools.ServiceKey]forwarding.HealthPort{key: {Port: 31000, Service: key, IPv4Endpoints: 1, Addrs: forwarding.NewAddrSet(addrs...)}})
			return nil
		})
		return errs
	}
	serves := func(addr string) bool {
		conn, err := s.Dial("tcp", "", addr+":31000")
		if err == nil {
			conn.Close()
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", addr, err)
		}
		return err == nil
	}
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, at := range [][]netip.Addr{{one}, {two}, {one, two}, nil} {
		if errs := set(at...); len(errs)+len(reported) > 0 {
			t.Errorf("%v: %v, reported %v", at, errs, reported)
		}
		want := forwarding.NewAddrSet(at...).String()
		for _, addr := range []string{"192.0.2.1", "192.0.2.2", "127.0.0.1"} {
			if got := serves(addr); got != strings.Contains(want, addr) {
				t.Errorf("at %v: %s is served: %v", at, addr, got)
			}
		}
	}
	s.Must(t, func() error {
		other, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "192.0.2.1:31000")
		if err == nil {
			t.Cleanup(func() { other.Close() })
		}
		return err
	})
	if errs := set(one); errs[key] == nil || reported[key] == nil {
		t.Errorf("taken: %v, reported %v", errs, reported)
	}
}
