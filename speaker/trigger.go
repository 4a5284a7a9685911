package speaker

import "sync/atomic"

// Trigger triggers the loop.
type Trigger struct {
	wake   chan struct{}
	resync atomic.Bool
}

// NewTrigger returns a Trigger that keeps at most one pending trigger.
func NewTrigger() *Trigger { return &Trigger{wake: make(chan struct{}, 1)} }

// Now makes the loop plan again if the View changed. It never blocks.
func (k *Trigger) Now() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Resync makes the loop observe the node at once, as the audit does once a second.
func (k *Trigger) Resync() {
	k.resync.Store(true)
	k.Now()
}
