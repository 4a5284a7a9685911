package probe

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	ms := time.Millisecond
	s := Summarize([]Result{
		{Sent: at(300), Took: 5 * ms, Pod: "b", Client: "192.0.2.12"},
		{Sent: at(0), Took: 5 * ms, Pod: "a", Client: "192.0.2.11"},
		{Sent: at(100), Took: 200 * ms, Error: "timeout"},
		// sent in the outage, answered at its end
		{Sent: at(200), Took: 60 * ms, Pod: "a", Client: "192.0.2.11"},
	})
	want := "4 requests, 1 failed, longest without an answer 255ms; answers: a 2, b 1; errors: 1 x timeout"
	if s.String() != want {
		t.Errorf("have %s\nwant %s", s, want)
	}
	if s.Clients["192.0.2.11"] != 2 || s.Clients["192.0.2.12"] != 1 {
		t.Errorf("clients %v", s.Clients)
	}
	none := Summarize([]Result{{Sent: at(0), Took: 1000 * ms, Error: "timeout"}, {Sent: at(500), Took: 1000 * ms, Error: "timeout"}})
	if none.Outage != 1500*ms || none.Failed != 2 {
		t.Errorf("without an answer: %s", none)
	}
	if err := none.Asked(); err != nil {
		t.Errorf("two requests: %v", err)
	}
	if err := Summarize(nil).Asked(); !errors.Is(err, ErrNothingSent) {
		t.Errorf("no request: %v, want %v", err, ErrNothingSent)
	}
}

func TestMoved(t *testing.T) {
	at := func(ms, took int, err string) Result {
		return Result{N: ms, Sent: time.UnixMilli(int64(ms)), Took: time.Duration(took) * time.Millisecond, Error: err}
	}
	for name, c := range map[string]struct {
		results []Result
		want    string
	}{
		"no failure":          {[]Result{at(100, 5, ""), at(200, 5, "")}, ""},
		"all under way":       {[]Result{at(100, 90, "read: reset"), at(110, 5, ""), at(150, 30, "read: EOF"), at(180, 10000, "read: timeout")}, ""},
		"one just made":       {[]Result{at(100, 90, "dial: connect: connection reset by peer"), at(150, 1000, "read: reset")}, ""},
		"one refused":         {[]Result{at(100, 90, "dial: connect: connection refused")}, "a connection was not made"},
		"one not connected":   {[]Result{at(100, 90, "read: reset"), at(150, 1000, "dial: timeout")}, "a connection was not made"},
		"one later than that": {[]Result{at(100, 90, "read: reset"), at(191, 5, "read: reset")}, "more than one moment"},
	} {
		if err := Summarize(c.results).Moved(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestParseAnswer(t *testing.T) {
	pod, client, err := ParseAnswer(Answer("web-1", "2001:db8::1"))
	if pod != "web-1" || client != "2001:db8::1" || err != nil {
		t.Error(pod, client, err)
	}
	for _, bad := range []string{"", "\n", "web-1", "web-1 here", " 192.0.2.1"} {
		if _, _, err := ParseAnswer(bad); err == nil {
			t.Errorf("%q is taken for an answer", bad)
		}
	}
}
