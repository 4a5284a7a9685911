package lab

import (
	"context"
	"fmt"
	"time"
)

// Eventually calls check every 100 ms, or less often if it takes longer, until it returns nil. It fails after limit
// with check's last error, and at once when a part of the lab has ended.
func (c *Cluster) Eventually(ctx context.Context, limit time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		began := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // not an error that only reports the timeout
		}
		if err := c.Err(); err != nil {
			return fmt.Errorf("wait for %s: the lab is broken: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %s: %w", what, limit, last)
		case <-time.After(max(100*time.Millisecond, time.Since(began))):
		}
	}
}
