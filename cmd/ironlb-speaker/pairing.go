package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
)

// evaluateEvery is the interval of evaluations: the speaker's own situation changes, too.
const evaluateEvery = 5 * time.Second

// pairing reports whether a kube-proxy on this node is compatible with the speaker: a line of the log and of /readyz
// for each warning and problem. A problem also causes an Event of the Node, a metric, and the condition of the
// VirtualIPs that this node reports.
type pairing struct {
	log *slog.Logger
	// ours returns the speaker's situation.
	ours func() kubeproxy.Situation
	// warn writes an Event, conflict the condition. An empty text means that the reason no longer applies.
	warn     func(reason, text string)
	conflict func(kube.Conflict)
	metric   *prometheus.GaugeVec

	mu       sync.Mutex
	facts    *kubeproxy.Facts // nil until the first detection
	problems []kubeproxy.Problem
}

func newPairing(log *slog.Logger, reg prometheus.Registerer) *pairing {
	p := &pairing{log: log, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ironlb", Name: "kube_proxy_problem",
		Help: "1 if kube-proxy on this node and the speaker get into each other's way for this reason."}, []string{"reason"})}
	reg.MustRegister(p.metric)
	for _, reason := range kubeproxy.Reasons {
		p.metric.WithLabelValues(string(reason)).Set(0)
	}
	return p
}

// found records the facts and evaluates them.
func (p *pairing) found(f kubeproxy.Facts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts = &f
	p.evaluate()
}

// run evaluates periodically until ctx ends.
func (p *pairing) run(ctx context.Context) error {
	ticker := time.NewTicker(evaluateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.mu.Lock()
			p.evaluate()
			p.mu.Unlock()
		}
	}
}

// evaluate publishes what differs from the last evaluation.
func (p *pairing) evaluate() {
	if p.facts == nil {
		return
	}
	problems := kubeproxy.Evaluate(*p.facts, p.ours())
	if slices.Equal(problems, p.problems) {
		return
	}
	for _, now := range problems {
		if !slices.Contains(p.problems, now) {
			level := slog.LevelWarn
			if now.Advice {
				level = slog.LevelInfo
			}
			p.log.Log(context.Background(), level, "kube-proxy on the node", "reason", string(now.Reason), "remediation", now.Message)
		}
	}
	p.problems = problems
	conflict, wrong := kube.Conflict{}, map[kubeproxy.Reason]string{}
	for _, now := range problems {
		if now.Advice {
			continue
		}
		if conflict.Reason == "" { // the most severe comes first
			conflict = kube.Conflict{Reason: string(now.Reason), Message: now.Message}
		}
		wrong[now.Reason] = now.Message
	}
	for _, reason := range kubeproxy.Reasons {
		text, is := wrong[reason]
		value := 0.0
		if is {
			value = 1
		}
		p.metric.WithLabelValues(string(reason)).Set(value)
		p.warn(string(reason), text)
	}
	if len(problems) == 0 {
		p.log.Info("kube-proxy and the speaker go together", "mode", string(p.facts.Mode))
	}
	p.conflict(conflict)
}

// readyz adds the problems to the response of ready. It does not change the status: a speaker that is not ready because
// of a problem that only an operator can fix would block its own update.
func (p *pairing) readyz(ready http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ready(w, r)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, now := range p.problems {
			kind := "problem"
			if now.Advice {
				kind = "advice"
			}
			fmt.Fprintf(w, "%s: %s: %s\n", kind, now.Reason, now.Message)
		}
	}
}

// situation returns the speaker's situation alongside a kube-proxy.
func situation(o options, source *kube.Source, inIPVS func() bool) func() kubeproxy.Situation {
	return func() kubeproxy.Situation {
		ours := source.Ours(o.nodeName)
		return kubeproxy.Situation{Pools: ours.Pools, Complete: ours.Full, Proxy: ours.Forwarded,
			ServiceProxy: o.config.ServiceProxy, IPVS: inIPVS()}
	}
}
