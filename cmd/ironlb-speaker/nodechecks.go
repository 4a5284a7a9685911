package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/nodecheck"
	"github.com/ironlb/ironlb/speaker/report"
)

// checkNodeEvery is how often the node is evaluated.
const checkNodeEvery = 15 * time.Second

// nodeChecks reports whether the node is as the configuration assumes, and the speaker in time: conditions of the
// SpeakerStatus. A False one also causes a Warning Event of the Node, a metric, and a line of /readyz and of the log.
type nodeChecks struct {
	log    *slog.Logger
	metric *prometheus.GaugeVec
	detect forwarding.DetectLocal
	// facts returns not ok until the cluster is known. With an error it returns the facts that could be determined.
	facts func() (f nodecheck.Facts, ok bool, err error)
	// warn writes an Event; an empty text means that the reason no longer applies. report publishes the conditions.
	warn   func(reason, text string)
	report func([]report.NodeCondition)

	mu      sync.Mutex
	last    []report.NodeCondition
	lastErr string
	// uncovered is set if the last evaluation found Pods that are not covered.
	uncovered bool
}

func newNodeChecks(log *slog.Logger, reg prometheus.Registerer) *nodeChecks {
	c := &nodeChecks{log: log, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "ironlb", Name: "node_condition",
		Help: "1 if a condition of the node's SpeakerStatus is True, 0 if it is False. Absent until it is evaluated.",
	}, []string{"type"})}
	reg.MustRegister(c.metric)
	return c
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
		c.log.Warn("cannot evaluate all of the node's network", "error", err)
	}
	c.lastErr = failed
	conditions := c.current(c.sure(nodecheck.Evaluate(facts, c.detect)))
	if slices.Equal(conditions, c.last) {
		return true
	}
	for _, now := range conditions {
		before, value := c.before(now.Type), 1.0
		if !now.True {
			value = 0
		}
		c.metric.WithLabelValues(now.Type).Set(value)
		if before.Reason != now.Reason {
			c.warn(before.Reason, "")
		}
		switch {
		case before == now:
		case !now.True:
			c.warn(now.Reason, now.Message)
			c.log.Warn("a condition of the node is False", "condition", now.Type, "reason", now.Reason,
				"remediation", now.Message)
		case before != (report.NodeCondition{}) && !before.True:
			c.log.Info("a condition of the node is True again", "condition", now.Type)
		}
	}
	c.last = conditions
	c.report(conditions)
	return true
}

// sure omits the finding of uncovered Pods unless the last evaluation had it as well: a Pod ends before its endpoint is
// removed, and its interface may appear after the endpoint.
func (c *nodeChecks) sure(found []report.NodeCondition) []report.NodeCondition {
	return slices.DeleteFunc(found, func(now report.NodeCondition) bool {
		if now.Type != nodecheck.PodTrafficDetected {
			return false
		}
		first := !now.True && !c.uncovered
		c.uncovered = !now.True
		return first
	})
}

// current returns the current conditions: those found, and the last ones of other types.
func (c *nodeChecks) current(found []report.NodeCondition) (all []report.NodeCondition) {
	for _, kind := range nodecheck.Types {
		now := c.before(kind)
		if i := slices.IndexFunc(found, func(f report.NodeCondition) bool { return f.Type == kind }); i >= 0 {
			now = found[i]
		}
		if now.Type != "" {
			all = append(all, now)
		}
	}
	return all
}

// before returns the last condition of a type, the zero value for none.
func (c *nodeChecks) before(kind string) report.NodeCondition {
	for _, condition := range c.last {
		if condition.Type == kind {
			return condition
		}
	}
	return report.NodeCondition{}
}

// readyz adds the problems to the response of ready. It does not change the status: see pairing.
func (c *nodeChecks) readyz(ready http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ready(w, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, now := range c.last {
			if !now.True {
				fmt.Fprintf(w, "problem: %s: %s\n", now.Reason, now.Message)
			}
		}
	}
}

// nodeFacts returns the facts of this node, and why some could not be determined.
func nodeFacts(source *kube.Source, node string, routes *nodecheck.Routes, inIPVS func() bool, calico func() (bool, error)) (
	f nodecheck.Facts, ok bool, err error,
) {
	endpoints, podCIDRs, ok := source.Endpoints(node)
	if !ok {
		return f, false, nil
	}
	var errs []error
	found := func(err error, types ...string) {
		if err != nil {
			errs, f.Unknown = append(errs, err), append(f.Unknown, types...)
		}
	}
	f.PodCIDRs, f.IPVS = podCIDRs, inIPVS()
	f.Endpoints, err = routes.To(endpoints)
	found(err, nodecheck.PodTrafficDetected, nodecheck.BridgeNetfilter)
	f.BridgeCall, err = nodecheck.BridgeCall()
	found(err, nodecheck.BridgeNetfilter)
	f.CalicoPolices, err = calico()
	found(err, nodecheck.NetworkPolicy)
	return f, true, errors.Join(errs...)
}
