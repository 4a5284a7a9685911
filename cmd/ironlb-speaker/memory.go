package main

import (
	"context"
	"runtime/debug"
	"time"
)

// gcPercent is the growth of the heap between two collections, unless GOGC is set. The start creates garbage, and an
// idle speaker nearly none: memory costs a node more than the collector's CPU time.
const gcPercent = 40

// startedFor is how long a speaker is ready before the memory of its start is returned.
const startedFor = 10 * time.Second

// returnMemory returns the memory that only the start used to the kernel, once. The collector alone would keep it for
// minutes, since an idle speaker hardly allocates.
func returnMemory(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(startedFor):
		debug.FreeOSMemory()
	}
	return nil
}
