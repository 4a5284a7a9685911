package ccm

import (
	"context"
	"time"
)

// backoff is the wait before another try after a failure: doubling from 100 ms to 30 s.
type backoff struct {
	wait time.Duration
}

const (
	firstWait = 100 * time.Millisecond
	lastWait  = 30 * time.Second
)

func newBackoff() *backoff { return &backoff{} }

func (b *backoff) next() time.Duration {
	b.wait = min(max(2*b.wait, firstWait), lastWait)
	return b.wait
}

func (b *backoff) reset() { b.wait = 0 }

// sleep waits. False: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
