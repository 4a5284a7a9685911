package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

func TestPairing(t *testing.T) {
	var log bytes.Buffer
	warnings, conflict := map[string]string{}, kube.Conflict{}
	ours := kubeproxy.Situation{Proxy: true, IPVS: true, Pools: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	p := newPairing(slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
	p.ours = func() kubeproxy.Situation { return ours }
	p.conflict = func(c kube.Conflict) { conflict = c }
	p.warn = func(reason, text string) {
		if delete(warnings, reason); text != "" {
			warnings[reason] = text
		}
	}
	readyz := func() string {
		w := httptest.NewRecorder()
		p.readyz(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })(w, nil)
		return w.Body.String()
	}
	check := func(reason, message string) {
		t.Helper()
		if len(warnings) > 1 || reason != "" && !strings.Contains(warnings[reason], message) || (reason == "") != (len(warnings) == 0) {
			t.Errorf("Events %v, want %q with %q", warnings, reason, message)
		}
		if conflict.Reason != reason || !strings.Contains(conflict.Message, message) {
			t.Errorf("condition %v, want %q with %q", conflict, reason, message)
		}
		for _, r := range kubeproxy.Reasons {
			if got := testutil.ToFloat64(p.metric.WithLabelValues(string(r))); (got == 1) != (string(r) == reason) {
				t.Errorf("metric of %s is %v", r, got)
			}
		}
	}
	p.evaluate() // before the first detection
	check("", "")
	p.found(kubeproxy.Facts{Running: true, Mode: kubeproxy.IPVS, Configured: true})
	check("KubeProxyDeletesVirtualServers", "add 203.0.113.0/24 to ipvs.excludeCIDRs")
	if got := readyz(); !strings.HasPrefix(got, "ok\nproblem: KubeProxyDeletesVirtualServers: ") {
		t.Errorf("/readyz: got %q", got)
	}
	ours.Pools[0] = netip.MustParsePrefix("198.51.100.0/24") // detected without a change of kube-proxy
	p.evaluate()
	check("KubeProxyDeletesVirtualServers", "add 198.51.100.0/24")
	before := log.Len()
	p.evaluate()
	if log.Len() > before {
		t.Errorf("logs without a change: %s", log.Bytes()[before:])
	}
	p.found(kubeproxy.Facts{Running: true, Mode: kubeproxy.NFTables, Configured: true})
	check("", "")
	if got := readyz(); !strings.Contains(got, "advice: KubeProxyFlushesVirtualServers: ") {
		t.Errorf("/readyz: got %q", got)
	}
	p.found(kubeproxy.Facts{Running: true, Mode: kubeproxy.IPVS, Configured: true, ExcludeCIDRs: []string{"198.51.100.0/24"}})
	check("", "")
	if got := readyz(); got != "ok\n" {
		t.Errorf("/readyz: got %q", got)
	}
}
