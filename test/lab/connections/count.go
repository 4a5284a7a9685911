package connections

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Fault is what happened while a client ran.
type Fault struct {
	Began time.Time
	Done  time.Time // its effect was complete, such as: another node answers for the address
	// Gone are the Pods whose connections may break, with the time since when: on a node that died, or removed and past
	// their grace period.
	Gone map[string]time.Time
}

// Share is a number of connections, and how many of them broke.
type Share struct{ All, Broken int }

// Add counts a connection.
func (s *Share) Add(broken bool) {
	s.All++
	if broken {
		s.Broken++
	}
}

// Count is the effect of a fault on the connections of a client.
type Count struct {
	// Elsewhere and Gone are the kept ones that were established when the fault began, with a Pod that is still there, and
	// with one of Fault.Gone. One that breaks before its Pod may is of the first class.
	Elsewhere, Gone Share
	// During are those without an answer when the fault began, and opened before it was done; New those opened later.
	During, New Share
	// InHandshake is the number of those of During that broke before their first answer.
	InHandshake int
	// Before is the number of those that broke before the fault: without cause.
	Before int
	// Causes are those of the broken ones, by class, and Clients the addresses that the Pods saw.
	Causes  map[string]map[Cause]int
	Clients map[string]int
	// ResetBy are the stations that sent the RSTs.
	ResetBy map[string]int
	Pods    map[string]int // of the established connections
}

// Names of the classes.
const (
	ClassElsewhere = "elsewhere"
	ClassGone      = "gone"
	ClassDuring    = "during"
	ClassNew       = "new"
	ClassBefore    = "before"
)

// CountLives counts the connections of an ended client.
func CountLives(lives []Life, f Fault) Count {
	c := Count{Causes: map[string]map[Cause]int{}, Clients: map[string]int{}, ResetBy: map[string]int{}, Pods: map[string]int{}}
	for _, l := range lives {
		broken := l.Cause != Unbroken
		if l.Client != "" {
			c.Clients[l.Client]++
		}
		class := f.class(l)
		switch class {
		case "":
			continue
		case ClassBefore:
			c.Before++
		case ClassElsewhere:
			c.Elsewhere.Add(broken)
		case ClassGone:
			c.Gone.Add(broken)
		case ClassDuring:
			c.During.Add(broken)
			if broken && l.First.IsZero() {
				c.InHandshake++
			}
		case ClassNew:
			c.New.Add(broken)
		}
		if class == ClassElsewhere || class == ClassGone {
			c.Pods[l.Pod]++
		}
		if !broken {
			continue
		}
		if c.Causes[class] == nil {
			c.Causes[class] = map[Cause]int{}
		}
		c.Causes[class][l.Cause]++
		if !l.Wire.Reset.IsZero() {
			c.ResetBy[l.Wire.ResetBy]++
		}
	}
	return c
}

// class returns the class of a connection; "" for one that is not counted: its client closed it before the fault, or
// soon after.
func (f Fault) class(l Life) string {
	broken := l.Cause != Unbroken
	switch {
	case !l.Ended.IsZero() && l.Ended.Before(f.Began):
		if broken {
			return ClassBefore
		}
		return ""
	case !l.First.IsZero() && l.First.Before(f.Began):
		if !l.Kept {
			return "" // too short
		}
		since, gone := f.Gone[l.Pod]
		if !gone || broken && l.failed().Before(since) {
			return ClassElsewhere
		}
		return ClassGone
	case !l.Opened.After(f.Done):
		return ClassDuring
	default:
		return ClassNew
	}
}

// failed returns the time since when a broken connection did not work. With a bound, that is before its end.
func (l Life) failed() time.Time {
	if l.Cause == Timeout && !l.Last.IsZero() {
		return l.Last
	}
	return l.Ended
}

// Established returns the number of connections that were established when the fault began.
func (c Count) Established() int { return c.Elsewhere.All + c.Gone.All }

// String returns the causes, the addresses that the Pods saw, and the stations that sent RSTs, as one readable line.
func (c Count) String() string {
	var s []string
	for _, class := range slices.Sorted(maps.Keys(c.Causes)) {
		s = append(s, class+": "+list(c.Causes[class]))
	}
	if len(c.ResetBy) > 0 {
		s = append(s, "RST from "+list(c.ResetBy))
	}
	return strings.Join(append(s, "clients seen: "+list(c.Clients)), "; ")
}

func list[K ~string](m map[K]int) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, fmt.Sprintf("%d %s", m[k], k))
	}
	return strings.Join(s, ", ")
}

// Row is the result of one fault.
type Row struct {
	Fault, Mode string
	Count
	// Answered are the connections with an answer, and Broken among them those with one from another node than the
	// Pod's. Masked are those whose Pod saw another address than the client's.
	Answered Share
	Masked   Share
	Moves    int // of the address to another owner
	Done         // of the client
}

// Table writes rows as a table in Markdown.
func Table(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.Debug)
	line := func(cells ...string) { fmt.Fprintln(t, "| "+strings.Join(cells, "\t ")+"\t") }
	line("fault", "forwarding", "established", "broken, Pod elsewhere", "broken, Pod gone",
		"broken, opened during the fault", "in handshake", "broken, opened later", "Pod sees the client's address")
	line("---", "---", "---", "---", "---", "---", "---", "---", "---")
	of := func(s Share) string { return fmt.Sprintf("%d of %d", s.Broken, s.All) }
	for _, r := range rows {
		line(r.Fault, r.Mode, fmt.Sprint(r.Established()), of(r.Elsewhere), of(r.Gone), of(r.During), fmt.Sprint(r.InHandshake), of(r.New),
			fmt.Sprintf("%d of %d", r.Masked.All-r.Masked.Broken, r.Masked.All))
	}
	return t.Flush()
}

// Benchmark returns a row as a line of Go's benchmark format.
func (r Row) Benchmark(procs int) string {
	s := fmt.Sprintf("BenchmarkConnections/%s/%s-%d\t1", strings.ReplaceAll(r.Fault, " ", "_"), r.Mode, procs)
	for _, u := range []struct {
		unit string
		n    int
	}{
		{"established", r.Established()},
		{"elsewhere", r.Elsewhere.All}, {"broken-elsewhere", r.Elsewhere.Broken},
		{"gone", r.Gone.All}, {"broken-gone", r.Gone.Broken},
		{"during", r.During.All}, {"broken-during", r.During.Broken}, {"broken-in-handshake", r.InHandshake},
		{"new", r.New.All}, {"broken-new", r.New.Broken},
		{"answered", r.Answered.All}, {"answered-by-another-node", r.Answered.Broken}, {"masked", r.Masked.Broken},
	} {
		s += fmt.Sprintf("\t%d %s", u.n, u.unit)
	}
	return s
}
