package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/ipvs/nftlb"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/speaker/report"
)

// checkNodeEvery is how often the node is evaluated.
const checkNodeEvery = 15 * time.Second

// uncoveredFor is how long Pods are not covered before that is reported.
const uncoveredFor = checkNodeEvery - time.Second

// nodeChecks reports whether the node is as the speaker needs it: conditions of the SpeakerStatus. Each problem is also
// a Warning Event of the Node, a metric, and a line of /readyz and of the log; an advice is in the last two. A problem
// with another service proxy is also a condition of the VirtualIPs that this node reports.
type nodeChecks struct {
	log        *slog.Logger
	conditions *prometheus.GaugeVec
	proxies    *prometheus.GaugeVec
	// facts returns not ok until the cluster is known. With an error it returns the facts that could be determined.
	facts func() (f nodecheck.Facts, ok bool, err error)
	// warn writes an Event; an empty text means that the reason no longer applies. report publishes the conditions,
	// conflict the one of VirtualIPs.
	warn     func(reason, text string)
	report   func([]report.NodeCondition)
	conflict func(kube.Conflict)
	wake     chan struct{}

	mu      sync.Mutex
	last    []nodecheck.Result
	lastErr string
	// uncovered is when evaluations began to find Pods that are not covered; zero if the last one found none.
	uncovered time.Time
}

func newNodeChecks(log *slog.Logger, reg prometheus.Registerer) *nodeChecks {
	c := &nodeChecks{log: log, wake: make(chan struct{}, 1), conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "ironlb", Name: "node_condition",
		Help: "1 if a condition of the node's SpeakerStatus is True, 0 if it is False. Absent until it is evaluated.",
	}, []string{"type"}), proxies: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "ironlb", Name: "kube_proxy_problem", Help: "1 if kube-proxy on this node and the speaker conflict for this reason.",
	}, []string{"reason"})}
	reg.MustRegister(c.conditions, c.proxies)
	for _, reason := range nodecheck.ProxyReasons {
		c.proxies.WithLabelValues(reason).Set(0)
	}
	return c
}

// soon triggers an evaluation. It never blocks.
func (c *nodeChecks) soon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run evaluates periodically until ctx ends.
func (c *nodeChecks) run(ctx context.Context) error {
	ticker := time.NewTicker(checkNodeEvery)
	defer ticker.Stop()
	retry := time.NewTicker(time.Second) // until the cluster is known
	defer retry.Stop()
	for {
		if c.evaluate() {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-retry.C:
		case <-c.wake:
		}
	}
}

// evaluate publishes what differs from the last evaluation, and reports whether the cluster is known. A condition whose
// facts could not all be determined stays unchanged.
func (c *nodeChecks) evaluate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	facts, ok, err := c.facts()
	if !ok {
		return false
	}
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != c.lastErr {
		c.log.Warn("cannot determine every fact about the node", "error", err)
	}
	c.lastErr = failed
	results := c.current(c.sure(nodecheck.Evaluate(facts)))
	if reflect.DeepEqual(results, c.last) {
		return true
	}
	c.publishProblems(problemsOf(c.last), problemsOf(results))
	c.last = results
	var conditions []report.NodeCondition
	conflict := kube.Conflict{}
	for _, r := range results {
		value := 1.0
		if !r.True {
			value = 0
		}
		c.conditions.WithLabelValues(r.Type).Set(value)
		if r.Type == nodecheck.ServiceProxies && !r.True {
			conflict = kube.Conflict{Reason: r.Reason, Message: r.Message}
		}
		conditions = append(conditions, r.NodeCondition)
	}
	c.report(conditions)
	c.conflict(conflict)
	return true
}

// publishProblems logs the new problems, and writes Events and metrics about those that are no advice.
func (c *nodeChecks) publishProblems(before, now map[nodecheck.Problem]bool) {
	texts := map[string][]string{}
	for p := range before {
		if !p.Advice {
			texts[p.Reason] = nil
		}
		if !now[p] {
			c.log.Info("a problem of the node is solved", "reason", p.Reason)
		}
	}
	for p := range now {
		level := slog.LevelWarn
		if p.Advice {
			level = slog.LevelInfo
		} else {
			texts[p.Reason] = append(texts[p.Reason], p.Message)
		}
		if !before[p] {
			c.log.Log(context.Background(), level, "a check of the node failed", "reason", p.Reason, "advice", p.Advice, "remediation", p.Message)
		}
	}
	for reason, messages := range texts {
		slices.Sort(messages)
		c.warn(reason, strings.Join(messages, "; "))
		if slices.Contains(nodecheck.ProxyReasons, reason) {
			c.proxies.WithLabelValues(reason).Set(float64(min(1, len(messages))))
		}
	}
}

func problemsOf(results []nodecheck.Result) map[nodecheck.Problem]bool {
	out := map[nodecheck.Problem]bool{}
	for _, r := range results {
		for _, p := range r.Problems {
			out[p] = true
		}
	}
	return out
}

// sure omits the finding of uncovered Pods until it has lasted: a Pod ends before its endpoint is removed, and its
// interface may appear after the endpoint.
func (c *nodeChecks) sure(found []nodecheck.Result) []nodecheck.Result {
	return slices.DeleteFunc(found, func(now nodecheck.Result) bool {
		switch {
		case now.Type != nodecheck.PodTrafficDetected:
			return false
		case now.True:
			c.uncovered = time.Time{}
		case c.uncovered.IsZero():
			c.uncovered = time.Now()
		}
		return !now.True && time.Since(c.uncovered) < uncoveredFor
	})
}

// current returns the current results: those found, and the last ones of other types.
func (c *nodeChecks) current(found []nodecheck.Result) (all []nodecheck.Result) {
	for _, kind := range nodecheck.Types {
		of := func(r nodecheck.Result) bool { return r.Type == kind }
		if i := slices.IndexFunc(found, of); i >= 0 {
			all = append(all, found[i])
		} else if i := slices.IndexFunc(c.last, of); i >= 0 {
			all = append(all, c.last[i])
		}
	}
	return all
}

// readyz adds the problems to the response of ready. It does not change the status: a speaker that is not ready because
// of a problem that only an operator can fix would block its own update.
func (c *nodeChecks) readyz(ready http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ready(w, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, now := range c.last {
			for _, p := range now.Problems {
				kind := "problem"
				if p.Advice {
					kind = "advice"
				}
				fmt.Fprintf(w, "%s: %s: %s\n", kind, p.Reason, p.Message)
			}
		}
	}
}

// nodeFacts gathers the facts of this node. Those of other tasks are nil until these have determined them.
type nodeFacts struct {
	*process
	kernel  string
	routes  nodecheck.Routes
	proxy   atomic.Pointer[kubeproxy.Facts]
	foreign atomic.Pointer[[]nft.Problem] // of other firewalls
}

// gather returns the facts, and why some could not be determined.
func (n *nodeFacts) gather() (f nodecheck.Facts, ok bool, err error) {
	endpoints, podCIDRs, ok := n.api.Source.Endpoints(n.nodeName)
	if !ok {
		return f, false, nil
	}
	var errs []error
	found := func(known bool, err error, types ...string) {
		if !known || err != nil {
			errs, f.Unknown = append(errs, err), append(f.Unknown, types...)
		}
	}
	f.DataPlane, f.Kernel, f.DataPlaneError = string(n.servers.kind()), n.kernel, n.servers.openError()
	found(f.DataPlane != "" || f.DataPlaneError != nil, nil, nodecheck.DataPlaneAvailable)
	f.Schedulers, f.Fallback = n.servers.unsupportedSchedulers(), nftlb.Fallback
	known, parameters := n.settings.state()
	f.Parameters = parameters
	found(known, nil, nodecheck.KernelParametersSet)
	if firewalls := n.foreign.Load(); firewalls != nil {
		for _, p := range *firewalls {
			f.Firewalls = append(f.Firewalls, nodecheck.Problem{Reason: string(p.Reason), Message: p.Text})
		}
	}
	found(n.foreign.Load() != nil, nil, nodecheck.FirewallsCompatible)
	if proxy := n.proxy.Load(); proxy != nil {
		f.Proxy = *proxy
	}
	found(n.proxy.Load() != nil, nil, nodecheck.ServiceProxies)
	ours := n.api.Source.Ours(n.nodeName)
	f.Ours = nodecheck.Situation{Pools: ours.Pools, Complete: ours.Full, Proxy: ours.Forwarded,
		ServiceProxy: n.config.ServiceProxy, IPVS: n.servers.inIPVS()}
	f.Detect, f.PodCIDRs = n.config.DetectLocal, podCIDRs
	f.Endpoints, err = n.routes.To(endpoints)
	found(true, err, nodecheck.PodTrafficDetected, nodecheck.BridgeNetfilter)
	f.BridgeCall, err = nodecheck.BridgeCall()
	found(true, err, nodecheck.BridgeNetfilter)
	f.CalicoPolices, err = n.calico.polices()
	found(true, err, nodecheck.NetworkPolicy)
	f.Proxies = n.announcer.Proxies()
	f.Links, err = l2.Links()
	found(true, err, nodecheck.OneInterfacePerSubnet)
	health := n.members.Health()
	f.NoDeadline, f.Stall, f.StallMessage = health.Message, health.Stall, health.StallMessage
	found(health.Class != "", nil, nodecheck.DeadlineScheduling)
	f.Refused = n.api.Source.Refused()
	return f, true, errors.Join(errs...)
}
