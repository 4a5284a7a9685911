package steady

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report summarizes a client's observations in a span of time.
type Report struct {
	Sent, Answered int // datagrams
	Tried, Failed  int // connections
	Failures       map[string]int

	// Outage is the larger of Gap and ConnGap.
	Outage time.Duration
	// Gap is the largest gap between two answers, ConnGap between two established connections.
	Gap, ConnGap time.Duration
	// Late is the maximum delay of the client itself: an outage up to Late is not significant.
	Late time.Duration
}

// Report summarizes the client's observations between two times. A gap that has not ended counts. Attempts count at
// their start, and undecided ones are left out: for all of them, call it ConnectLimit later, or after Stop.
func (c *Client) Report(from, to time.Time) Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.report(from, to)
}

func (r record) report(from, to time.Time) Report {
	rep := Report{Failures: map[string]int{}}
	in := func(t time.Time) bool { return !t.Before(from) && !t.After(to) }
	for _, t := range r.sent {
		if in(t) {
			rep.Sent++
		}
	}
	for _, t := range r.answered {
		if in(t) {
			rep.Answered++
		}
	}
	var made []time.Time
	for _, a := range r.attempts {
		if a.err == nil {
			made = append(made, a.ended)
		}
		if !in(a.began) {
			continue
		}
		rep.Tried++
		if a.err != nil {
			rep.Failed++
			rep.Failures[a.err.Error()]++
		}
	}
	for _, l := range r.late {
		if in(l.at) {
			rep.Late = max(rep.Late, l.by)
		}
	}
	rep.Gap, rep.ConnGap = gap(r.answered, from, to), gap(made, from, to)
	rep.Outage = max(rep.Gap, rep.ConnGap)
	return rep
}

// gap returns the largest time without an event that extends into the span.
func gap(events []time.Time, from, to time.Time) (most time.Duration) {
	last := from
	for _, t := range events {
		if t.After(to) {
			break
		}
		if !t.Before(from) {
			most = max(most, t.Sub(last))
		}
		last = t // an event before from starts a gap that extends into the span
	}
	return max(most, to.Sub(last))
}

// Steady reports whether, at the time now, the client has had answers and connections without a gap of limit or more
// for the span.
func (c *Client) Steady(now time.Time, span, limit time.Duration) bool {
	r := c.Report(now.Add(-span), now)
	return r.Outage < limit && r.Answered > 0
}

// String returns the report as one readable line.
func (r Report) String() string {
	s := fmt.Sprintf("outage %s; %d of %d datagrams answered; %d of %d connections failed", r.Outage.Round(time.Millisecond), r.Answered, r.Sent, r.Failed, r.Tried)
	var why []string
	for e, n := range r.Failures {
		why = append(why, fmt.Sprintf("%d x %s", n, e))
	}
	slices.Sort(why)
	if len(why) > 0 {
		s += " (" + strings.Join(why, ", ") + ")"
	}
	if r.Late > 4*Every {
		s += fmt.Sprintf("; the client itself was up to %s late", r.Late.Round(time.Millisecond))
	}
	return s
}
