package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/speaker/report"
)

// Each change is published once: the condition, the Event, the metric, and a line of /readyz while there is a problem.
// Pods count as uncovered only after a while.
func TestNodeChecks(t *testing.T) {
	pod := netip.MustParseAddr("10.1.2.3")
	detect := forwarding.DetectLocal{Mode: forwarding.NodeCIDR}
	others := []string{nodecheck.DataPlaneAvailable, nodecheck.SchedulersAvailable, nodecheck.KernelParametersSet, nodecheck.FirewallsCompatible, nodecheck.ServiceProxies}
	covered := nodecheck.Facts{Detect: detect, Unknown: others, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Endpoints: map[netip.Addr]nodecheck.Route{pod: {Interface: "cali1"}}}
	not := nodecheck.Facts{Detect: detect, Unknown: others, Endpoints: covered.Endpoints}
	calico := nodecheck.Facts{Ours: nodecheck.Situation{IPVS: true}, CalicoPolices: true,
		Unknown: append(others[:5:5], nodecheck.PodTrafficDetected, nodecheck.BridgeNetfilter)}
	var facts nodecheck.Facts
	var known bool
	var fault error
	var logged []string
	c := newNodeChecks(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	c.conflict = func(kube.Conflict) {}
	c.facts = func() (nodecheck.Facts, bool, error) { return facts, known, fault }
	c.warn = func(reason, text string) {
		if reason != "" {
			logged = append(logged, fmt.Sprintf("%s=%t", reason, text != ""))
		}
	}
	c.report = func(all []report.NodeCondition) {
		wrong := slices.ContainsFunc(all, func(c report.NodeCondition) bool { return !c.True })
		logged = append(logged, fmt.Sprint(!wrong))
	}
	fails := errors.New("no permission")
	ready := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }
	for i, step := range []struct {
		facts  nodecheck.Facts
		known  bool
		fault  error
		logged string
		metric float64
		readyz string
	}{
		{known: false, metric: 0},
		{fault: fails, facts: calico, known: true, logged: "CalicoIgnoresIPVS=true false", metric: 0,
			readyz: "problem: CalicoIgnoresIPVS"},
		{facts: covered, known: true, logged: "CalicoIgnoresIPVS=false true", metric: 1},
		{facts: covered, known: true, metric: 1},
		{facts: not, known: true, metric: 1}, // a Pod may have ended
		{facts: covered, known: true, metric: 1},
		{facts: not, known: true, metric: 1},
		{facts: not, known: true, logged: "PodsNotCovered=true false", metric: 0,
			readyz: "problem: PodsNotCovered: detectLocalMode NodeCIDR"},
		{fault: fails, facts: nodecheck.Facts{Unknown: nodecheck.Types}, known: true, metric: 0,
			readyz: "problem: PodsNotCovered"},
		{facts: not, known: true, metric: 0, readyz: "problem: PodsNotCovered"},
		{facts: covered, known: true, logged: "PodsNotCovered=false true", metric: 1},
	} {
		facts, known, fault, logged = step.facts, step.known, step.fault, nil
		later(c)
		if got := c.evaluate(); got != step.known {
			t.Errorf("step %d: evaluated %t, want %t", i, got, step.known)
		}
		if got := strings.Join(logged, " "); got != step.logged {
			t.Errorf("step %d: published %q, want %q", i, got, step.logged)
		}
		if got := testutil.ToFloat64(c.conditions.WithLabelValues(nodecheck.PodTrafficDetected)); got != step.metric {
			t.Errorf("step %d: metric %v, want %v", i, got, step.metric)
		}
		answer := httptest.NewRecorder()
		c.readyz(ready)(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if body := answer.Body.String(); !strings.HasPrefix(body, "ok\n"+step.readyz) || step.readyz == "" && body != "ok\n" {
			t.Errorf("step %d: /readyz %q, want %q in it", i, body, step.readyz)
		}
	}
}

// later lets the time between two evaluations pass.
func later(c *nodeChecks) {
	if !c.uncovered.IsZero() {
		c.uncovered = c.uncovered.Add(-checkNodeEvery)
	}
}

// A first evaluation that finds an uncovered Pod does not report it.
func TestNotCoveredAtFirst(t *testing.T) {
	var types []string
	c := newNodeChecks(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	c.conflict = func(kube.Conflict) {}
	c.facts = func() (nodecheck.Facts, bool, error) {
		return nodecheck.Facts{Detect: forwarding.DetectLocal{Mode: forwarding.NodeCIDR}, Endpoints: map[netip.Addr]nodecheck.Route{netip.MustParseAddr("10.1.2.3"): {}}}, true, nil
	}
	c.warn = func(string, string) {}
	c.report = func(all []report.NodeCondition) {
		types = nil
		for _, condition := range all {
			types = append(types, fmt.Sprintf("%s=%t", condition.Type, condition.True))
		}
	}
	for _, want := range []string{
		"true NetworkPolicyEnforced=true BridgeNetfilter=true",
		"true NetworkPolicyEnforced=true PodTrafficDetected=false BridgeNetfilter=true",
	} {
		later(c)
		if c.evaluate(); !strings.Contains(strings.Join(types, " "), want) {
			t.Errorf("reported %v, want %s", types, want)
		}
	}
}

// A problem with another service proxy is an Event, a metric, a condition of VirtualIPs and a line of /readyz, an advice
// is a line. A change of the speaker's configuration is detected as well.
func TestPairing(t *testing.T) {
	var log bytes.Buffer
	warnings, conflict := map[string]string{}, kube.Conflict{}
	facts := nodecheck.Facts{Ours: nodecheck.Situation{Proxy: true, IPVS: true, Pools: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	c := newNodeChecks(slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry())
	c.facts = func() (nodecheck.Facts, bool, error) { return facts, true, nil }
	c.conflict, c.report = func(now kube.Conflict) { conflict = now }, func([]report.NodeCondition) {}
	c.warn = func(reason, text string) {
		if delete(warnings, reason); text != "" {
			warnings[reason] = text
		}
	}
	check := func(when string, proxy kubeproxy.Facts, reason, message, readyz string) {
		t.Helper()
		facts.Proxy = proxy
		c.evaluate()
		if len(warnings) > 1 || reason != "" && !strings.Contains(warnings[reason], message) || (reason == "") != (len(warnings) == 0) {
			t.Errorf("%s: Events %v, want %q with %q", when, warnings, reason, message)
		}
		if conflict.Reason != reason || !strings.Contains(conflict.Message, message) {
			t.Errorf("%s: condition %v, want %q with %q", when, conflict, reason, message)
		}
		for _, r := range nodecheck.ProxyReasons {
			if got := testutil.ToFloat64(c.proxies.WithLabelValues(r)); (got == 1) != (r == reason) {
				t.Errorf("%s: metric of %s is %v", when, r, got)
			}
		}
		w := httptest.NewRecorder()
		c.readyz(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })(w, nil)
		if got := w.Body.String(); !strings.HasPrefix(got, "ok\n"+readyz) || readyz == "" && got != "ok\n" {
			t.Errorf("%s: /readyz %q, want %q", when, got, readyz)
		}
	}
	ipvs := kubeproxy.Facts{Running: true, Mode: kubeproxy.IPVS, Configured: true}
	check("none", kubeproxy.Facts{}, "", "", "")
	check("nothing excluded", ipvs, "KubeProxyDeletesVirtualServers", "add 203.0.113.0/24 to ipvs.excludeCIDRs", "problem: KubeProxyDeletesVirtualServers: ")
	facts.Ours.Pools[0] = netip.MustParsePrefix("198.51.100.0/24")
	check("another pool", ipvs, "KubeProxyDeletesVirtualServers", "add 198.51.100.0/24", "problem: ")
	before := log.Len()
	if c.evaluate(); log.Len() > before {
		t.Errorf("logs without a change: %s", log.Bytes()[before:])
	}
	check("nftables", kubeproxy.Facts{Running: true, Mode: kubeproxy.NFTables, Configured: true}, "", "", "advice: KubeProxyFlushesVirtualServers: ")
	ipvs.ExcludeCIDRs = []string{"198.51.100.0/24"}
	check("excluded", ipvs, "", "", "")
}
