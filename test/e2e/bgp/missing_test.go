package bgp

import (
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/router"
)

func TestMissing(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	request := func(ms, took int, err string) probe.Result {
		return probe.Result{N: ms, Sent: at(ms), Took: time.Duration(took) * time.Millisecond, Error: err}
	}
	change := router.Event{At: at(105), Prefix: host(vip)}
	for name, test := range map[string]struct {
		results []probe.Result
		events  []router.Event
		want    string
	}{
		"all answered":          {results: []probe.Result{request(0, 5, ""), request(100, 5, "")}},
		"a SYN is sent again":   {results: []probe.Result{request(0, 5, ""), request(100, 1010, ""), request(120, 5, "")}, want: "request 100 "},
		"all wait together":     {results: []probe.Result{request(0, 1300, ""), request(100, 1205, ""), request(1200, 110, "")}},
		"one breaks":            {results: []probe.Result{request(100, 20, "read: reset"), request(120, 5, "")}, want: "read: reset"},
		"by a change":           {results: []probe.Result{request(100, 20, "read: reset"), request(120, 5, "")}, events: []router.Event{change}},
		"after a change":        {results: []probe.Result{request(110, 20, "read: reset"), request(120, 5, "")}, events: []router.Event{change}, want: "read: reset"},
		"by a change elsewhere": {results: []probe.Result{request(100, 20, "read: reset")}, events: []router.Event{{At: at(105), Prefix: host(vip6)}}, want: "read: reset"},
		"none is made":          {results: []probe.Result{request(100, 20, "dial: refused")}, events: []router.Event{change}, want: "dial: refused"},
	} {
		if err := missing(probe.Summarize(test.results), vip, test.events); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
