// Package loop is what the control loops of ironlb-ccm have in common.
//
// A loop is one goroutine that owns its state. Events only trigger it, through a channel of size one (Trigger). A loop
// that fails retries with a Backoff. It ticks its Liveness at every pass and while it waits: a loop that stalls for two
// minutes fails the probe, and the process is replaced.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// Liveness records when each loop last ticked.
type Liveness struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// NewBackoff returns the delays between retries: doubling from 100 ms to 30 s.
func NewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}
}

// Sleep waits for d. False: ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

const (
	TickEvery  = 10 * time.Second
	StallLimit = 2 * time.Minute // one write of a pass may be slow, and there are many
)

func NewLiveness() *Liveness { return &Liveness{last: map[string]time.Time{}} }

// Tick records a tick of the loop.
func (p *Liveness) Tick(loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[loop] = time.Now()
}

// Wait returns true when it is triggered and false when ctx ends. The loop counts as ticking while it waits.
func (p *Liveness) Wait(ctx context.Context, loop string, trigger <-chan struct{}) bool {
	tick := time.NewTicker(TickEvery)
	defer tick.Stop()
	for {
		p.Tick(loop)
		select {
		case <-ctx.Done():
			return false
		case <-trigger:
			p.Tick(loop)
			return true
		case <-tick.C:
		}
	}
}

// Check fails if a loop has stalled.
func (p *Liveness) Check(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for loop, at := range p.last {
		if since := time.Since(at); since > StallLimit {
			return fmt.Errorf("%s loop stalled for %s", loop, since.Round(time.Second))
		}
	}
	return nil
}

// WaitSynced waits for the caches and logs a remediation if that takes long. False: ctx ended.
func WaitSynced(ctx context.Context, log *slog.Logger, synced []cache.InformerSynced) bool {
	slow := time.AfterFunc(15*time.Second, func() {
		log.Error("waiting for the initial lists of Services, Nodes or ironlb.io objects: no address is assigned until then",
			"remediation", "apply deploy/ironlb.yaml, or upgrade the Helm release")
	})
	defer slow.Stop()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// Trigger sends on a channel of size one unless it is full.
func Trigger(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
