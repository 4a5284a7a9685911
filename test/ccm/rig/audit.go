package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// auditPolicy makes the API server log every answered write of ironlb-ccm's account.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    verbs: [get, list, watch]
  - level: Metadata
    users: ["` + accountUser + `"]
  - level: None
`

// audited returns the programs, with kube-apiserver replaced by a script that starts it with an audit log.
func (r *Rig) audited(program func(string) string) (func(string) string, error) {
	policy, script := filepath.Join(r.Dir, "audit-policy.yaml"), filepath.Join(r.Dir, "kube-apiserver")
	text := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\" '--audit-policy-file=%s' '--audit-log-path=%s' --audit-log-maxsize=10000\n",
		program("kube-apiserver"), policy, r.auditLog())
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		return nil, fmt.Errorf("write the start of kube-apiserver: %w", err)
	}
	return func(name string) string {
		if name == "kube-apiserver" {
			return script
		}
		return program(name)
	}, nil
}

func (r *Rig) auditLog() string { return filepath.Join(r.Dir, "audit.log") }

// Write is a kind of write to the API server.
type Write struct {
	Verb, Resource string // "patch", "services/status"
}

// Writes counts requests.
type Writes map[Write]int

// skipAudited makes Writes begin here. The account's programs must have ended.
func (r *Rig) skipAudited() error {
	info, err := os.Stat(r.auditLog())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		r.unread = info.Size()
	}
	return err
}

// Writes returns the writes of ironlb-ccm's account since the start or the last Reset, refused and failed requests
// included, and the time of the last answer.
func (r *Rig) Writes() (counts Writes, last time.Time, err error) {
	counts = Writes{}
	f, err := os.Open(r.auditLog())
	if errors.Is(err, os.ErrNotExist) {
		return counts, last, nil // nothing written yet
	}
	if err != nil {
		return nil, last, fmt.Errorf("count the writes: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(r.unread, io.SeekStart); err != nil {
		return nil, last, fmt.Errorf("count the writes: %w", err)
	}
	for in := bufio.NewReader(f); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return counts, last, nil // an incomplete line is still being written
		}
		if err != nil {
			return nil, last, fmt.Errorf("count the writes: %w", err)
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, last, fmt.Errorf("count the writes: %w in %q", err, line)
		}
		if e.Stage != "ResponseComplete" {
			continue
		}
		if e.StageTimestamp.After(last) {
			last = e.StageTimestamp
		}
		w := Write{e.Verb, e.ObjectRef.Resource}
		if e.ObjectRef.Subresource != "" {
			w.Resource += "/" + e.ObjectRef.Subresource
		}
		counts[w]++
	}
}

// auditEvent holds the relevant fields of an audit log line.
type auditEvent struct {
	Verb           string
	Stage          string
	StageTimestamp time.Time
	ObjectRef      struct{ Resource, Subresource string }
}

// idle is the time without a write until the state is settled.
const idle = 2 * time.Second

// Settled is Writes after a time without writes.
func (r *Rig) Settled(ctx context.Context) (Writes, time.Time, error) {
	tick := time.NewTicker(idle / 4)
	defer tick.Stop()
	start := time.Now()
	for {
		counts, last, err := r.Writes()
		if err != nil {
			return nil, last, err
		}
		if time.Since(last) > idle && time.Since(start) > idle {
			return counts, last, nil
		}
		select {
		case <-ctx.Done():
			return nil, last, fmt.Errorf("ironlb-ccm continues to write: %w; so far %v", context.Cause(ctx), counts)
		case <-tick.C:
		}
	}
}

// Since returns the increase over before.
func (w Writes) Since(before Writes) Writes {
	more := Writes{}
	for k, n := range w {
		if d := n - before[k]; d > 0 {
			more[k] = d
		}
	}
	return more
}

// Of leaves out writes unrelated to Services: Leases, and reviews of clients that read the program's HTTP pages.
func (w Writes) Of() Writes {
	own := maps.Clone(w)
	for k := range own {
		if k.Resource == "leases" || strings.HasSuffix(k.Resource, "reviews") {
			delete(own, k)
		}
	}
	return own
}

// Sum returns the total.
func (w Writes) Sum() (n int) {
	for _, c := range w {
		n += c
	}
	return n
}

// Kinds lists the kinds in sorted order.
func (w Writes) Kinds() []Write {
	return slices.SortedFunc(maps.Keys(w), func(a, b Write) int {
		return strings.Compare(a.Resource+" "+a.Verb, b.Resource+" "+b.Verb)
	})
}

func (w Writes) String() string {
	var s []string
	for _, k := range w.Kinds() {
		s = append(s, fmt.Sprintf("%s %s %d", k.Verb, k.Resource, w[k]))
	}
	return strings.Join(s, ", ")
}
