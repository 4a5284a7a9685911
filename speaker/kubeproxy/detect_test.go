package kubeproxy_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// configz is the response of kube-proxy v1.36.3 in mode nftables.
//
//go:embed testdata/configz-v1.36.3.json
var configz string

// proxy serves the endpoints of a kube-proxy; an empty response is status 404.
func proxy(t *testing.T, mode, configz string) *httptest.Server {
	mux := http.NewServeMux()
	for path, answer := range map[string]string{"/proxyMode": mode, "/configz": configz} {
		if answer != "" {
			mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		}
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func traces(mode kubeproxy.Mode, list ...string) func() ([]string, kubeproxy.Mode, error) {
	return func() ([]string, kubeproxy.Mode, error) { return list, mode, nil }
}

func TestObserve(t *testing.T) {
	nowhere := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return "http://" + l.Addr().String()
	}()
	found := kubeproxy.Facts{
		Running: true, Mode: kubeproxy.IPVS, Configured: true,
		ExcludeCIDRs: []string{"203.0.113.0/24"}, NodePortAddresses: []string{"192.0.2.0/24"}, StrictARP: true,
	}
	for _, c := range []struct {
		name   string
		url    string
		traces func() ([]string, kubeproxy.Mode, error)
		want   kubeproxy.Facts
		err    string
	}{
		{"configz", proxy(t, "ipvs", configz).URL, nil, found, ""},
		{"names of the types", proxy(t, "ipvs", strings.NewReplacer("ipvs\":{", "IPVS\":{", "excludeCIDRs", "ExcludeCIDRs", "strictARP", "StrictARP",
			"nodePortAddresses", "NodePortAddresses").Replace(configz)).URL, nil, found, ""},
		{"no configuration", proxy(t, "nftables", "").URL, nil, kubeproxy.Facts{Running: true, Mode: kubeproxy.NFTables}, "status 404"},
		{"broken configuration", proxy(t, "iptables", "{").URL, nil, kubeproxy.Facts{Running: true, Mode: kubeproxy.IPTables}, "configuration"},
		{"another program", proxy(t, "<html>hello", "").URL, nil, kubeproxy.Facts{}, "not of a kube-proxy"},
		{"traces", nowhere, traces(kubeproxy.IPTables, "iptables chain KUBE-SERVICES of ip"),
			kubeproxy.Facts{Mode: kubeproxy.IPTables, Traces: []string{"iptables chain KUBE-SERVICES of ip"}}, ""},
		{"nothing", nowhere, traces(kubeproxy.Unknown), kubeproxy.Facts{}, ""},
		{"kernel not observable", nowhere, func() ([]string, kubeproxy.Mode, error) { return nil, "", errors.New("no permission") },
			kubeproxy.Facts{}, "no permission"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kubeproxy.New(kubeproxy.Config{Log: slog.New(slog.DiscardHandler), URL: c.url, Traces: c.traces}).Observe(t.Context())
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// Changes are reported once each, soon after a suspicion.
func TestRun(t *testing.T) {
	var mode atomic.Value
	mode.Store("ipvs")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/configz" {
			fmt.Fprint(w, configz)
			return
		}
		fmt.Fprint(w, mode.Load())
	}))
	defer server.Close()
	changes := make(chan kubeproxy.Facts, 10)
	d := kubeproxy.New(kubeproxy.Config{
		Log: slog.New(slog.DiscardHandler), URL: server.URL, Every: time.Hour,
		Changed: func(f kubeproxy.Facts) { changes <- f },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	next := func(want kubeproxy.Mode) {
		t.Helper()
		select {
		case f := <-changes:
			if f.Mode != want {
				t.Errorf("mode %s, want %s", f.Mode, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no change to %s", want)
		}
	}
	next(kubeproxy.IPVS)
	d.Suspect() // nothing has changed
	mode.Store("nftables")
	d.Suspect()
	next(kubeproxy.NFTables)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(changes) > 0 {
		t.Errorf("%d more changes", len(changes))
	}
}

func TestKernelTraces(t *testing.T) {
	s := netspace.New(t)
	steps := []struct {
		do   func() error
		want string
		mode kubeproxy.Mode
	}{
		{func() error { return nil }, "[]", kubeproxy.Unknown},
		{nft("add table ip ironlb; add chain ip ironlb KUBE-SERVICES; add table inet nat"), "[]", kubeproxy.Unknown},
		{nft("add table ip6 kube-proxy"), "[nftables table ip6 kube-proxy]", kubeproxy.NFTables},
		{nft("delete table ip6 kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES"),
			"[iptables chain KUBE-SERVICES of ip]", kubeproxy.IPTables},
		{func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "kube-ipvs0"
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}) // instead of a dummy, which not every kernel has
		}, "[interface kube-ipvs0 iptables chain KUBE-SERVICES of ip]", kubeproxy.IPVS},
	}
	for i, step := range steps {
		s.Must(t, func() error {
			if err := step.do(); err != nil {
				return err
			}
			got, mode, err := kubeproxy.KernelTraces()
			if fmt.Sprint(got) != step.want || mode != step.mode {
				t.Errorf("step %d: %v, mode %q; want %s, mode %q", i, got, mode, step.want, step.mode)
			}
			return err
		})
	}
}

func nft(script string) func() error {
	return func() error {
		out, err := exec.Command("nft", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}
}

// The response is the same as kube-proxy's, but a Detector does not take it for one.
func TestModeHandler(t *testing.T) {
	var mode kubeproxy.Mode
	server := httptest.NewServer(kubeproxy.ModeHandler(func() kubeproxy.Mode { return mode }))
	defer server.Close()
	for _, c := range []struct {
		path   string
		mode   kubeproxy.Mode
		status int
		body   string
	}{
		{"/proxyMode", "", http.StatusServiceUnavailable, "the data plane is not known yet\n"},
		{"/proxyMode", kubeproxy.IPVS, http.StatusOK, "ipvs"},
		{"/proxyMode", kubeproxy.NFTables, http.StatusOK, "nftables"},
		{"/metrics", kubeproxy.NFTables, http.StatusNotFound, "404 page not found\n"},
		{"/configz", kubeproxy.NFTables, http.StatusNotFound, "404 page not found\n"},
	} {
		mode = c.mode
		response, err := http.Get(server.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != c.status || string(body) != c.body {
			t.Errorf("%s in mode %q: %d %q, %v, want %d %q", c.path, c.mode, response.StatusCode, body, err, c.status, c.body)
		}
	}
	d := kubeproxy.New(kubeproxy.Config{URL: server.URL, Log: slog.New(slog.DiscardHandler), Traces: traces("")})
	facts, err := d.Observe(t.Context())
	if err != nil || !reflect.DeepEqual(facts, kubeproxy.Facts{}) {
		t.Errorf("found %+v, %v, want no kube-proxy", facts, err)
	}
}
