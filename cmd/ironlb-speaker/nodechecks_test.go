package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/speaker/report"
)

// Each change is published once: the condition, the Event, the metric, and a line of /readyz while there is a problem.
// Pods count as uncovered only if the last evaluation found that, too.
func TestNodeChecks(t *testing.T) {
	pod := netip.MustParseAddr("10.1.2.3")
	covered := nodecheck.Facts{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Endpoints: map[netip.Addr]nodecheck.Route{pod: {Interface: "cali1"}}}
	not := nodecheck.Facts{Endpoints: covered.Endpoints}
	calico := nodecheck.Facts{IPVS: true, CalicoPolices: true,
		Unknown: []string{nodecheck.PodTrafficDetected, nodecheck.BridgeNetfilter}}
	var facts nodecheck.Facts
	var known bool
	var fault error
	var logged []string
	c := newNodeChecks(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	c.detect = forwarding.DetectLocal{Mode: forwarding.NodeCIDR}
	c.facts = func() (nodecheck.Facts, bool, error) { return facts, known, fault }
	c.warn = func(reason, text string) {
		if reason != "" {
			logged = append(logged, fmt.Sprintf("%s=%t", reason, text != ""))
		}
	}
	c.report = func(all []report.NodeCondition) { logged = append(logged, fmt.Sprint(all[0].True)) }
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
		{facts: not, known: true, logged: "PodsCovered=false PodsNotCovered=true false", metric: 0,
			readyz: "problem: PodsNotCovered: detectLocalMode NodeCIDR"},
		{fault: fails, facts: nodecheck.Facts{Unknown: nodecheck.Types}, known: true, metric: 0,
			readyz: "problem: PodsNotCovered"},
		{facts: not, known: true, metric: 0, readyz: "problem: PodsNotCovered"},
		{facts: covered, known: true, logged: "PodsNotCovered=false true", metric: 1},
	} {
		facts, known, fault, logged = step.facts, step.known, step.fault, nil
		if got := c.evaluate(); got != step.known {
			t.Errorf("step %d: evaluated %t, want %t", i, got, step.known)
		}
		if got := strings.Join(logged, " "); got != step.logged {
			t.Errorf("step %d: published %q, want %q", i, got, step.logged)
		}
		if got := testutil.ToFloat64(c.metric.WithLabelValues(nodecheck.PodTrafficDetected)); got != step.metric {
			t.Errorf("step %d: metric %v, want %v", i, got, step.metric)
		}
		answer := httptest.NewRecorder()
		c.readyz(ready)(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if body := answer.Body.String(); !strings.HasPrefix(body, "ok\n"+step.readyz) || step.readyz == "" && body != "ok\n" {
			t.Errorf("step %d: /readyz %q, want %q in it", i, body, step.readyz)
		}
	}
}

// A first evaluation that finds an uncovered Pod does not report it.
func TestNotCoveredAtFirst(t *testing.T) {
	var types []string
	c := newNodeChecks(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	c.detect = forwarding.DetectLocal{Mode: forwarding.NodeCIDR}
	c.facts = func() (nodecheck.Facts, bool, error) {
		return nodecheck.Facts{Endpoints: map[netip.Addr]nodecheck.Route{netip.MustParseAddr("10.1.2.3"): {}}}, true, nil
	}
	c.warn = func(string, string) {}
	c.report = func(all []report.NodeCondition) {
		types = nil
		for _, condition := range all {
			types = append(types, fmt.Sprintf("%s=%t", condition.Type, condition.True))
		}
	}
	for _, want := range []string{
		"BridgeNetfilter=true NetworkPolicyEnforced=true NoProxyARP=true OneInterfacePerSubnet=true DeadlineScheduling=true NoStall=true",
		"PodTrafficDetected=false BridgeNetfilter=true NetworkPolicyEnforced=true NoProxyARP=true OneInterfacePerSubnet=true DeadlineScheduling=true NoStall=true",
	} {
		if c.evaluate(); strings.Join(types, " ") != want {
			t.Errorf("reported %v, want %s", types, want)
		}
	}
}
