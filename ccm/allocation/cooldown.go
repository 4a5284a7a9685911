package allocation

import (
	"time"

	"github.com/ironlb/ironlb/pools"
)

// Restore continues the cool-downs that earlier leaders recorded.
func (l *Ledger) Restore(all []pools.CoolDown) {
	l.change(func() { l.alloc.Restore(all, l.Now()) })
}

// NextExpiry returns when the first cool-down ends.
func (l *Ledger) NextExpiry() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.NextExpiry()
}
