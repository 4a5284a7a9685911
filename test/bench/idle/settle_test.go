package main

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSettled(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []time.Duration
		want  bool
	}{
		{"too few", []time.Duration{100, 100}, false},
		{"steady", []time.Duration{900, 100, 95, 90}, true},
		{"falling", []time.Duration{1000, 700, 500}, false},
		{"has fallen", []time.Duration{1000, 100, 100}, false},
		{"rising", []time.Duration{100, 150, 200}, true},
	} {
		if have := settled(c.steps); have != c.want {
			t.Errorf("%s: %t", c.name, have)
		}
	}
}

func TestCallOf(t *testing.T) {
	for text, want := range map[string]string{
		fmt.Sprintf("%d 0x1 0x80 0x0\n", unix.SYS_FUTEX): "futex", fmt.Sprintf("%d 0xc000 0x3\n", unix.SYS_PPOLL): "ppoll",
		"running\n": "running",
	} {
		if have := callOf(text); have != want {
			t.Errorf("%q: %s, want %s", text, have, want)
		}
	}
	c := calls{7: {"futex": 2, "ppoll": 5}}
	if have := c.usual(7) + c.usual(8); have != "ppoll-" {
		t.Errorf("usual: %s", have)
	}
}
