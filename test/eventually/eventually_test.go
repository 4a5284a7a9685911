package eventually

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// failing records the message of a test that fails.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatal(args ...any) {
	f.message = fmt.Sprint(args...)
	runtime.Goexit()
}

func message(t *testing.T, fails func(testing.TB)) string {
	f, ended := &failing{TB: t}, make(chan struct{})
	go func() {
		defer close(ended)
		fails(f)
	}()
	<-ended
	return f.message
}

func TestNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		Nil(t, time.Second, "the third call", func(context.Context) error {
			calls++
			return Unless(calls == 3, "it is call %d", calls)
		})
		if took := time.Since(began); calls != 3 || took != 10*time.Millisecond {
			t.Errorf("%d calls took %v", calls, took)
		}
		for _, c := range []struct{ takes, pause time.Duration }{
			{time.Millisecond, 10 * time.Millisecond}, {20 * time.Millisecond, 50 * time.Millisecond}, {time.Second, time.Second},
		} {
			began, calls := time.Now(), 0
			True(t, time.Minute, "the second call", func() bool {
				time.Sleep(c.takes)
				calls++
				return calls == 2
			})
			if took := time.Since(began); took != 2*c.takes+c.pause {
				t.Errorf("two calls of %v took %v", c.takes, took)
			}
		}
	})
}

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, fails := range map[string]func(testing.TB){
			"wait for rain: not within 1s: it is not so": func(t testing.TB) {
				True(t, time.Second, "rain", func() bool { return false })
			},
			// The last error is not that of the context.
			"wait for rain: not within 10s: 3 drops": func(t testing.TB) {
				n := 0
				Nil(t, 10*time.Second, "rain", func(ctx context.Context) error {
					if n++; n <= 3 {
						return fmt.Errorf("%d drops", n)
					}
					<-ctx.Done()
					return ctx.Err()
				})
			},
		} {
			if is := message(t, fails); is != want {
				t.Errorf("got %q, want %q", is, want)
			}
		}
	})
}

// A cleanup waits, too: the test's context has ended.
func TestCleanup(t *testing.T) {
	var have error
	t.Run("", func(t *testing.T) {
		t.Cleanup(func() {
			Nil(t, time.Minute, "a context", func(ctx context.Context) error { have = ctx.Err(); return nil })
		})
	})
	if have != nil {
		t.Error(have)
	}
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		began, dry, broken := time.Now(), errors.New("dry"), errors.New("the gauge is broken")
		err := Poll(ctx, 100*time.Millisecond, time.Minute, "rain", func(context.Context) error {
			if time.Since(began) == time.Second {
				end(broken)
			}
			return dry
		})
		if took := time.Since(began); !errors.Is(err, dry) || !errors.Is(err, broken) || took != time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
