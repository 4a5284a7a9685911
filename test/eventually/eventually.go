// Package eventually waits for conditions in tests.
package eventually

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Nil calls check until it returns nil, and fails the test after the limit, with check's last error. A pause is ten
// times as long as check took, from 5 to 50 ms. The context does not end with the test's: cleanups wait, too.
func Nil(t testing.TB, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	pause := func(took time.Duration) time.Duration {
		return min(max(5*time.Millisecond, 10*took), 50*time.Millisecond)
	}
	if err := poll(context.WithoutCancel(t.Context()), pause, limit, what, check); err != nil {
		t.Fatal(err)
	}
}

// True is Nil for a condition.
func True(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	Nil(t, limit, what, func(context.Context) error { return Unless(ok(), "it is not so") })
}

// Unless returns an error unless the condition holds.
func Unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Poll calls check at this interval, or less often if it takes longer, until it returns nil. After the limit, or when
// the context ends, it fails with check's last error.
func Poll(ctx context.Context, every, limit time.Duration, what string, check func(context.Context) error) error {
	return poll(ctx, func(time.Duration) time.Duration { return every }, limit, what, check)
}

// poll pauses for no less than check took.
func poll(ctx context.Context, pause func(took time.Duration) time.Duration, limit time.Duration, what string,
	check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	var last error
	for {
		began := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // not an error that only reports the end of the context
		}
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), last)
		case <-time.After(max(took, pause(took))):
		}
	}
}
