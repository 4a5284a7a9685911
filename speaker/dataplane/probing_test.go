package dataplane

import (
	"testing"
	"time"
)

// A node whose Apply fails after each successful probe is probed less and less often, whatever changes meanwhile; one
// that was able for long begins again.
func TestProbing(t *testing.T) {
	var p probing
	now := time.Unix(1000, 0)
	if p.begun() {
		t.Error("begun before the first probe")
	}
	wait := func(want time.Duration, changed bool) {
		t.Helper()
		p.changed = changed
		if p.due(now.Add(want-time.Nanosecond)) || !p.due(now.Add(want)) {
			t.Errorf("want a probe after %v", want)
		}
		now = now.Add(want)
	}
	probed := func(able bool) { p.probed(now, able) }

	probed(false)
	wait(time.Minute, false)
	probed(false)
	wait(10*time.Second, true)
	probed(true)
	p.failed(now)
	wait(10*time.Second, true) // the first failure may have a cause that the change removed
	probed(false)
	wait(time.Minute, false)
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 32} {
		probed(true)
		now = now.Add(time.Second)
		p.failed(now)
		wait(want*time.Minute, true)
		probed(false)
		wait(want*time.Minute, true)
	}
	probed(true)
	now = now.Add(steadyAfter)
	p.failed(now)
	wait(time.Minute, false)
}
