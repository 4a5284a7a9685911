package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"
)

type recorder struct{ calls []string }

func (r *recorder) Retain() { r.calls = append(r.calls, "retain") }
func (r *recorder) Leave()  { r.calls = append(r.calls, "leave") }

// A request from before SIGTERM counts, however late it is received.
func TestAwaitEnd(t *testing.T) {
	for range 100 {
		ctx, stop := context.WithCancel(t.Context())
		retain := make(chan os.Signal, 1)
		retain <- retainSignal
		stop()
		r := &recorder{}
		awaitEnd(ctx, t.Context(), retain, r, slog.New(slog.DiscardHandler))
		if !slices.Equal(r.calls, []string{"retain", "leave"}) {
			t.Fatalf("calls %v", r.calls)
		}
	}
	life, end := context.WithTimeout(t.Context(), time.Millisecond)
	defer end()
	r := &recorder{}
	awaitEnd(t.Context(), life, make(chan os.Signal), r, slog.New(slog.DiscardHandler))
	if len(r.calls) > 0 {
		t.Errorf("calls %v", r.calls)
	}
}
