package speaker

import "sync/atomic"

// Kick wakes the loop up.
type Kick struct {
	wake chan struct{}
	look atomic.Bool
}

// NewKick returns a Kick that remembers one call.
func NewKick() *Kick { return &Kick{wake: make(chan struct{}, 1)} }

// Now makes the loop plan again if something changed in the View. It never blocks.
func (k *Kick) Now() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Look makes the loop look at the node at once, as the audit does twice a second.
func (k *Kick) Look() {
	k.look.Store(true)
	k.Now()
}
