package loop

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	TickEvery  = 10 * time.Second
	StallLimit = 2 * time.Minute // one write of a pass may be slow, and there are many
)

// Liveness records when each loop last ticked.
type Liveness struct {
	mu   sync.Mutex
	last map[string]time.Time
}

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
