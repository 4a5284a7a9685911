package speaker

import "sync/atomic"

// Kick triggers the loop.
type Kick struct {
	wake chan struct{}
	look atomic.Bool
}

// NewKick returns a Kick that keeps at most one pending trigger.
func NewKick() *Kick { return &Kick{wake: make(chan struct{}, 1)} }

// Now makes the loop plan again if the View changed. It never blocks.
func (k *Kick) Now() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Look makes the loop observe the node at once, as the audit does twice a second.
func (k *Kick) Look() {
	k.look.Store(true)
	k.Now()
}
