// Package kubeproxy detects a kube-proxy on this node, its mode and configuration, and other service proxies.
// Whether they are compatible with the speaker is decided in speaker/nodecheck.
package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
)

// server is the Server header that lets a Detector distinguish a ModeHandler from a kube-proxy.
const server = "ironlb-speaker"

// ModeHandler serves only /proxyMode, like a kube-proxy of the mode. An empty mode is not known yet.
func ModeHandler(mode func() Mode) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Server", server)
		m := mode()
		if m == "" {
			http.Error(w, "the data plane is not known yet", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, string(m))
	})
	return mux
}

// Mode is how a kube-proxy forwards.
type Mode string

// The modes of kube-proxy. Unknown means that the mode could not be determined, or that there is no kube-proxy.
const (
	Unknown  Mode = ""
	IPTables Mode = "iptables"
	IPVS     Mode = "ipvs"
	NFTables Mode = "nftables"
)

// Facts are the known facts about the kube-proxy of this node.
type Facts struct {
	// Running is set when it responds.
	Running bool
	Mode    Mode
	// Traces are what a kube-proxy has created in the kernel, running or not ("nftables table ip kube-proxy").
	Traces []string
	// Others are the service proxies of this node other than kube-proxy.
	Others []Other
	// Configured is set when its configuration could be read; it is in the fields below.
	Configured        bool
	ExcludeCIDRs      []string
	NodePortAddresses []string
	StrictARP         bool
}

// Present reports whether a kube-proxy runs, or may.
func (f Facts) Present() bool { return f.Running || len(f.Traces) > 0 }

// Config configures a Detector. Zero values have defaults.
type Config struct {
	Log *slog.Logger
	// Changed is called from Run with the first facts and after each change. It must not block.
	Changed func(Facts)
	// URL is kube-proxy's metricsBindAddress (http://127.0.0.1:10249).
	URL string
	// Every is the polling interval (30 s).
	Every time.Duration
	// Traces lists what a kube-proxy has created in the kernel, with the mode that it indicates ([KernelTraces]).
	Traces func() ([]string, Mode, error)
	// Others lists the service proxies other than kube-proxy ([KernelOthers]).
	Others func() ([]Other, error)
}

// Detector detects the kube-proxy of this node.
type Detector struct {
	cfg    Config
	client *http.Client
	wake   chan struct{}
}

// soonest is the minimum interval between two polls, also on suspicion.
const soonest = time.Second

// New returns a Detector that has not polled yet.
func New(cfg Config) *Detector {
	if cfg.URL == "" {
		cfg.URL = "http://127.0.0.1:10249"
	}
	if cfg.Every == 0 {
		cfg.Every = 30 * time.Second
	}
	if cfg.Traces == nil {
		cfg.Traces = KernelTraces
	}
	if cfg.Others == nil {
		cfg.Others = KernelOthers
	}
	return &Detector{
		cfg:    cfg,
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
		wake:   make(chan struct{}, 1),
	}
}

// Suspect triggers an early poll: a virtual server of IronLB was deleted. It never blocks.
func (d *Detector) Suspect() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run polls until ctx ends.
func (d *Detector) Run(ctx context.Context) error {
	var last *Facts
	logged := ""
	for {
		facts, err := d.Observe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if text := fmt.Sprint(err); err != nil && text != logged {
			d.cfg.Log.Warn("cannot fully inspect kube-proxy", "error", err)
			logged = text
		}
		if last == nil || !reflect.DeepEqual(*last, facts) {
			d.cfg.Log.Info("kube-proxy detection finished", "running", facts.Running, "mode", facts.Mode, "traces", facts.Traces,
				"others", facts.Others)
			last = &facts
			d.cfg.Changed(facts)
		}
		if !d.rest(ctx) {
			return nil
		}
	}
}

// rest waits for the next poll and reports whether there is one.
func (d *Detector) rest(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(soonest):
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d.cfg.Every - soonest):
	case <-d.wake:
	}
	return true
}

// Observe determines the facts. The error names those that could not be determined; the facts contain the others.
func (d *Detector) Observe(ctx context.Context) (f Facts, err error) {
	others, otherErr := d.cfg.Others()
	f, err = d.findKubeProxy(ctx)
	f.Others = others
	return f, errors.Join(err, otherErr)
}

func (d *Detector) findKubeProxy(ctx context.Context) (f Facts, err error) {
	mode, err := d.get(ctx, "/proxyMode")
	if err == nil {
		f.Running, f.Mode = true, Mode(strings.TrimSpace(string(mode)))
		if known := []Mode{IPTables, IPVS, NFTables}; !slices.Contains(known, f.Mode) {
			return Facts{}, fmt.Errorf("%s/proxyMode is not of a kube-proxy: its answer is %.40q", d.cfg.URL, mode)
		}
		if err := d.configure(ctx, &f); err != nil {
			return f, err
		}
		return f, nil
	}
	// It does not listen: it is absent, starting, or its metrics have another address. The kernel state decides.
	var traceErr error
	f.Traces, f.Mode, traceErr = d.cfg.Traces()
	return f, traceErr
}

// configure reads /configz. Its names are those of kube-proxy's own types, which differ from the file's only in case.
func (d *Detector) configure(ctx context.Context, f *Facts) error {
	text, err := d.get(ctx, "/configz")
	if err != nil {
		return fmt.Errorf("read kube-proxy's configuration: %w", err)
	}
	var z map[string]struct {
		NodePortAddresses []string
		IPVS              struct {
			ExcludeCIDRs []string
			StrictARP    bool
		}
	}
	if err := json.Unmarshal(text, &z); err != nil {
		return fmt.Errorf("read kube-proxy's configuration: %w", err)
	}
	c, ok := z["kubeproxy.config.k8s.io"]
	if !ok {
		return errors.New("read kube-proxy's configuration: /configz lacks kubeproxy.config.k8s.io")
	}
	f.Configured = true
	f.ExcludeCIDRs, f.NodePortAddresses, f.StrictARP = c.IPVS.ExcludeCIDRs, c.NodePortAddresses, c.IPVS.StrictARP
	return nil
}

// answerMost limits the size of a response.
const answerMost = 1 << 20

func (d *Detector) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.cfg.URL+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.Header.Get("Server") == server {
		return nil, fmt.Errorf("%s: answered by %s", path, server)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", path, response.StatusCode)
	}
	return io.ReadAll(io.LimitReader(response.Body, answerMost))
}
