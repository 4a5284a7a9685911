package ccmtest

import (
	"testing"
	"time"
)

func Expect(t *testing.T, what, want string) {
	t.Helper()
	if what != want {
		t.Errorf("got %q, want %q", what, want)
	}
}

// Eventually polls until the condition holds.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
