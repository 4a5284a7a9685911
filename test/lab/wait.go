package lab

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/eventually"
)

// Eventually calls check every 100 ms, or less often if it takes longer, until it returns nil. It fails after limit
// with check's last error, and at once when a part of the lab has ended.
func (c *Cluster) Eventually(ctx context.Context, limit time.Duration, what string, check func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	return eventually.Poll(ctx, 100*time.Millisecond, limit, what, func(ctx context.Context) error {
		err := check(ctx)
		if broken := c.Err(); err != nil && broken != nil {
			end(fmt.Errorf("the lab is broken: %w", broken))
		}
		return err
	})
}

// Await is Eventually in a test, and fails it. The context does not end with the test's: cleanups wait, too.
func (c *Cluster) Await(t testing.TB, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	if err := c.Eventually(context.WithoutCancel(t.Context()), limit, what, check); err != nil {
		t.Fatal(err)
	}
}
