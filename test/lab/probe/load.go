package probe

import (
	"maps"
	"math"
	"slices"
	"time"
)

// SizedPath is the path on PortHTTP for an answer of as many bytes as the number after it. Its first line is a Pod's
// answer line.
const SizedPath = "/bytes/"

// EndlessPath is the path on PortHTTP of a download without an end: a block every BlockEvery, which begins with
// a Pod's answer line.
const (
	EndlessPath = "/endless"
	BlockSize   = 1 << 16
	BlockEvery  = 20 * time.Millisecond
)

// Load is the result of a client that sends one request after the other over each of several connections.
type Load struct {
	Requests int            `json:"requests"` // answered
	Failed   int            `json:"failed"`
	InTime   int            `json:"inTime"` // of Requests: answered before the end of the duration, when no request is sent any more
	P50      time.Duration  `json:"p50"`    // of the answered requests: from the request, or its connection's SYN, to the last byte
	P99      time.Duration  `json:"p99"`
	Max      time.Duration  `json:"max"`
	Pods     map[string]int `json:"pods"`    // answers of each Pod
	Clients  map[string]int `json:"clients"` // answers by the client's address that the Pod saw
	Errors   map[string]int `json:"errors,omitempty"`
	User     time.Duration  `json:"user"` // CPU time of the client
	System   time.Duration  `json:"system"`
}

// Tally counts the requests of one connection at a time.
type Tally struct {
	Times                 []time.Duration // of answered requests
	InTime                int
	Pods, Clients, Errors map[string]int
}

// NewTally returns an empty one.
func NewTally() *Tally {
	return &Tally{Pods: map[string]int{}, Clients: map[string]int{}, Errors: map[string]int{}}
}

// Answered counts an answer.
func (t *Tally) Answered(took time.Duration, inTime bool, pod, client string) {
	t.Times = append(t.Times, took)
	if inTime {
		t.InTime++
	}
	t.Pods[pod]++
	t.Clients[client]++
}

// Sum returns the result of several tallies.
func Sum(tallies ...*Tally) Load {
	all := NewTally()
	for _, t := range tallies {
		all.Times = append(all.Times, t.Times...)
		all.InTime += t.InTime
		add(all.Pods, t.Pods)
		add(all.Clients, t.Clients)
		add(all.Errors, t.Errors)
	}
	slices.Sort(all.Times)
	l := Load{
		Requests: len(all.Times), InTime: all.InTime,
		P50: quantile(all.Times, 0.5), P99: quantile(all.Times, 0.99), Max: quantile(all.Times, 1),
		Pods: all.Pods, Clients: all.Clients, Errors: all.Errors,
	}
	for n := range maps.Values(all.Errors) {
		l.Failed += n
	}
	return l
}

func add(to, from map[string]int) {
	for k, n := range from {
		to[k] += n
	}
}

// quantile returns the nearest rank of sorted times; 0 of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
