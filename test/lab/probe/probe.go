// Package probe defines the data exchanged between the lab's clients and its Pods: a Pod's answer line, the results
// that a client prints as JSON lines, and their summary.
package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Ports of every Pod of the lab, in addition to PortEcho.
const (
	PortHTTP   = 8080 // answers every request with one line
	PortUDP    = 8080 // answers every datagram with one line
	PortStream = 9090 // TCP, answers each line with one line, until the client closes
)

// Result of one request.
type Result struct {
	N      int           `json:"n"`              // from 1, in the order sent
	Conn   int           `json:"conn,omitempty"` // from 1, with several connections
	Sent   time.Time     `json:"sent"`
	Took   time.Duration `json:"took"`
	Pod    string        `json:"pod,omitempty"`    // the Pod that answered
	Client string        `json:"client,omitempty"` // the client's address that the Pod saw
	Error  string        `json:"error,omitempty"`  // empty if answered
}

// OK reports whether the request was answered.
func (r Result) OK() bool { return r.Error == "" }

// Connected reports whether a connection was established; if the request failed, the connection broke. The client's
// errors begin with the operation, as package net names it. A reset while the client dials implies an established
// connection: a reset in answer to a SYN is a refusal (tcp_reset of net/ipv4/tcp_input.c).
func (r Result) Connected() bool {
	return !strings.HasPrefix(r.Error, "dial: ") || strings.HasSuffix(r.Error, unix.ECONNRESET.Error())
}

// Answer returns a Pod's answer line.
func Answer(pod, client string) string { return pod + " " + client + "\n" }

// ParseAnswer reads a Pod's line.
func ParseAnswer(line string) (pod, client string, err error) {
	pod, client, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok || pod == "" {
		return "", "", fmt.Errorf("answer %q is not one of a Pod of the lab", line)
	}
	if _, err := netip.ParseAddr(client); err != nil {
		return "", "", fmt.Errorf("answer %q: %w", line, err)
	}
	return pod, client, nil
}

// Summary of a client's results.
type Summary struct {
	Results []Result // by the time sent
	Sent    int
	Failed  int
	Outage  time.Duration  // the largest gap between two successive answers
	ByPod   map[string]int // answers
	Clients map[string]int // answers by the client's address that the Pod saw
}

// Summarize counts results. With fewer than two answers the outage is the total time.
func Summarize(results []Result) Summary {
	s := Summary{Sent: len(results), ByPod: map[string]int{}, Clients: map[string]int{}}
	s.Results = slices.Clone(results)
	slices.SortFunc(s.Results, func(a, b Result) int { return a.Sent.Compare(b.Sent) })
	var answered []time.Time
	var first, last time.Time
	for i, r := range s.Results {
		at := r.End()
		if i == 0 {
			first = r.Sent
		}
		if at.After(last) {
			last = at
		}
		if !r.OK() {
			s.Failed++
			continue
		}
		answered = append(answered, at)
		s.ByPod[r.Pod]++
		s.Clients[r.Client]++
	}
	if len(answered) < 2 {
		answered = []time.Time{first, last}
	}
	slices.SortFunc(answered, time.Time.Compare)
	for i := 1; i < len(answered); i++ {
		s.Outage = max(s.Outage, answered[i].Sub(answered[i-1]))
	}
	return s
}

// ErrNothingSent is the error for a client that sent no request: zero failures prove nothing then.
var ErrNothingSent = errors.New("the client sent nothing")

// Asked returns ErrNothingSent for a client without requests.
func (s Summary) Asked() error {
	if s.Sent == 0 {
		return ErrNothingSent
	}
	return nil
}

// Errors returns each distinct error with its count, sorted.
func (s Summary) Errors() []string {
	count := map[string]int{}
	for _, r := range s.Results {
		if !r.OK() {
			count[r.Error]++
		}
	}
	var out []string
	for e, n := range count {
		out = append(out, fmt.Sprintf("%d x %s", n, e))
	}
	slices.Sort(out)
	return out
}

// Moved returns an error unless a move of the address to another node explains all failures: new connections always
// succeed, and connections unknown to the new node break. All broken connections must then have been open at one
// moment.
func (s Summary) Moved() error {
	var last, first Result // of the failed requests: the last one sent, and the first one ended
	for _, r := range s.Results {
		switch {
		case r.OK():
			continue
		case !r.Connected():
			return fmt.Errorf("a connection was not made: request %d of %s, after %s: %s", r.N, r.Sent.Format(time.TimeOnly), r.Took, r.Error)
		}
		last = r
		if first.N == 0 || r.End().Before(first.End()) {
			first = r
		}
	}
	if last.Sent.After(first.End()) {
		return fmt.Errorf("connections broke at more than one moment: request %d ended (%s) %s before request %d was sent, which broke too (%s)",
			first.N, first.Error, last.Sent.Sub(first.End()), last.N, last.Error)
	}
	return nil
}

// End returns the time of the answer or the failure.
func (r Result) End() time.Time { return r.Sent.Add(r.Took) }

// String returns the summary as one readable line.
func (s Summary) String() string {
	var pods []string
	for pod, n := range s.ByPod {
		pods = append(pods, fmt.Sprintf("%s %d", pod, n))
	}
	slices.Sort(pods)
	line := fmt.Sprintf("%d requests, %d failed, longest without an answer %s; answers: %s",
		s.Sent, s.Failed, s.Outage.Round(time.Millisecond), strings.Join(pods, ", "))
	if e := s.Errors(); len(e) > 0 {
		line += "; errors: " + strings.Join(e, "; ")
	}
	return line
}
