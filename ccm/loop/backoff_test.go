package loop

import (
	"slices"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := NewBackoff()
	var got []time.Duration
	for range 12 {
		got = append(got, b.Step())
	}
	ms := time.Millisecond
	want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30 * time.Second, 30 * time.Second, 30 * time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("waits %v, want %v", got, want)
	}
}
