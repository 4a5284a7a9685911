package connectivity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironlb/ironlb/cmd/internal/echo"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
)

// Request returns the command of so many requests, one after the other, each on a new connection. perSecond limits their
// rate, 0: no limit.
func Request(url string, n, perSecond int) []string {
	return []string{program, "echo", "request", "--count", strconv.Itoa(n), "--per-second", strconv.Itoa(perSecond), url}
}

// URL returns that of a path of the server at an address.
func URL(addr netip.Addr, port uint16, path string) string {
	return "http://" + netip.AddrPortFrom(addr, port).String() + path
}

// NoRoute is the error of a request from a machine without a route for the family of the address.
const NoRoute = "this machine has no route to the address"

// Transfers reads the output of Request. A last line without an end, as of a command that was stopped, is not counted.
func Transfers(out []byte) (all []echo.Transfer) {
	for line := range bytes.Lines(out) {
		var t echo.Transfer
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &t) == nil {
			all = append(all, t)
		}
	}
	return all
}

// Result describes transfers in a line: the different answers, and how often they came.
func Result(all []echo.Transfer) string {
	count := map[string]int{}
	for _, t := range all {
		if t.OK {
			count[strconv.Quote(t.Body)]++
		} else {
			count[t.Error]++
		}
	}
	if len(count) == 0 {
		return "nothing"
	}
	var out []string
	for _, answer := range slices.Sorted(maps.Keys(count)) {
		if count[answer] == len(all) {
			return answer
		}
		out = append(out, fmt.Sprintf("%d of %d: %s", count[answer], len(all), answer))
	}
	return strings.Join(out, "; ")
}

// Answered returns an error unless each of so many requests was answered by the server.
func Answered(all []echo.Transfer, n int) error {
	for _, t := range all {
		if !t.OK || t.Body != Server {
			return fmt.Errorf("not every request was answered by Pod %s: %s", Server, Result(all))
		}
	}
	if len(all) != n {
		return fmt.Errorf("%d of %d requests were made", len(all), n)
	}
	return nil
}

// Refused returns an error if one of the requests, of which there must be one, was answered.
func Refused(all []echo.Transfer) error {
	if len(all) == 0 {
		return fmt.Errorf("no request was made")
	}
	for _, t := range all {
		if t.OK || strings.HasPrefix(t.Error, "HTTP") {
			return fmt.Errorf("the address answers a client that it must not answer: %s", Result(all))
		}
	}
	return nil
}

// Seen returns the client's address in the answers to /clientip.
func Seen(all []echo.Transfer) (addr netip.Addr, err error) {
	for i, t := range all {
		at, err := netip.ParseAddrPort(t.Body)
		switch {
		case !t.OK || err != nil:
			return addr, fmt.Errorf("no address of the client in the answer: %s", Result(all))
		case i > 0 && at.Addr().Unmap() != addr:
			return addr, fmt.Errorf("different addresses of the client: %s", Result(all))
		}
		addr = at.Addr().Unmap()
	}
	if !addr.IsValid() {
		err = fmt.Errorf("no request was made")
	}
	return addr, err
}

// Kept returns an error if the endpoint of a Service with policy Local sees an address of the cluster in place of that of
// an outside client, and whether it sees none of the client's own addresses: then a router between them translates it.
func Kept(saw netip.Addr, own []net.Addr, c *diagnose.Cluster) (translated bool, err error) {
	for _, a := range own {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == saw {
			return false, nil
		}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && addr == saw {
				return false, fmt.Errorf("the endpoint sees %s, an address of Node %s, in place of the client's", saw, n.Name)
			}
		}
	}
	return true, nil
}

// Gap is the longest time from one answer to the next of requests that begin at this interval or as soon as the one
// before has ended, and the number of requests without an answer.
func Gap(all []echo.Transfer, interval time.Duration) (gap time.Duration, failed int) {
	since := time.Duration(0)
	for _, t := range all {
		since += max(t.Took, interval)
		gap = max(gap, since)
		if t.OK {
			since = 0
		} else {
			failed++
		}
	}
	return gap, failed
}

// Announced returns the interfaces on which a node announces an address, by the dump of its speaker.
func Announced(dump []byte, addr netip.Addr) (on []string, err error) {
	var d struct {
		Speaker struct {
			Loop *struct {
				VirtualIPs []struct {
					Announced map[netip.Addr][]string `json:"announced"`
				} `json:"virtualIPs"`
			} `json:"loop"`
			Error string `json:"error"`
		} `json:"speaker"`
	}
	if err := json.Unmarshal(dump, &d); err != nil {
		return nil, err
	}
	if d.Speaker.Loop == nil {
		return nil, fmt.Errorf("no state of its loop: %s", d.Speaker.Error)
	}
	for _, v := range d.Speaker.Loop.VirtualIPs {
		on = append(on, v.Announced[addr]...)
	}
	return on, nil
}

// One returns an error unless only the owner announces the address.
func One(announcers map[string][]string, owner string) error {
	switch nodes := slices.Sorted(maps.Keys(announcers)); {
	case len(nodes) == 0:
		return fmt.Errorf("no speaker announces it, though %s owns it", owner)
	case len(nodes) > 1:
		return fmt.Errorf("more than one speaker announces it: %s", strings.Join(nodes, ", "))
	case nodes[0] != owner:
		return fmt.Errorf("%s announces it, and %s owns it", nodes[0], owner)
	}
	return nil
}
