// Command direct compares forwarding "pod" and "direct" under load, in one run on one lab on this machine's kernel, on
// nftables: three nodes with two Pods each, and a client on their LAN. Two Services, one for each way of forwarding,
// have the same Pods and share one address, so that one node owns both. The ways are measured one after the other in
// each round. It prints Go's benchmark format on standard output, a line for each round, then a table with the medians
// and the ratios; and its progress on standard error. It needs root.
//
// The client has a number of connections with one request under way on each (-concurrency), so the rate is what the
// cluster serves. With connections=new each request has a connection of its own, with connections=kept a connection has
// a hundred. The client checks the size of each answer, and that each Pod sees the client's address with "direct".
//
//	req/s         answers per second of -duration. All nodes, Pods and the client are on this machine and share its CPUs.
//	p50-ms, p99-ms, max-ms  of the time from the request to the last byte of its answer, at the client. The first one
//	              of a connection begins with its SYN. A lost SYN is sent again after a second.
//	cpu-us/op     CPU time for each request of the client, the Pods' servers and the kernel's threads ksoftirqd. Packets
//	              between network namespaces are forwarded in the context of the process that sends, or in ksoftirqd, so
//	              it has the data plane of all nodes and the switch between them. Other processes are not in it.
//	kernel-us/op  the share of it in the kernel, without the programs of client and Pods. It has the data plane, and the
//	              sockets of the client and the Pods, which are not separable.
//	owner-B/op    bytes received and sent by the LAN interface of the owner of the address, for each request
//	others-B/op   the sum of the same over the nodes that do not own it
//	failed        requests without an answer, which are in no other figure
//
// Links of network namespaces carry segments of up to 64 kB, so CPU time for each byte is less than with network cards,
// and headers of single packets are not counted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type options struct {
	modes, connections []string
	sizes              []int
	rounds             int
	concurrency        int
	duration           time.Duration
	logs               string
}

// Modes of forwarding, as values of the annotation.
const (
	pod    = "pod"
	direct = "direct"
)

// perConnection is the number of requests over one connection.
var perConnection = map[string]int{"new": 1, "kept": 100}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("direct", flag.ContinueOnError)
	modes := flags.String("modes", pod+","+direct, "ways of forwarding, in this order in each round")
	connections := flags.String("connections", "new,kept", "a connection for each request, or for a hundred")
	sizes := flags.String("sizes", "1000,1000000", "bytes of an answer")
	flags.IntVar(&o.rounds, "rounds", 5, "how often each is measured")
	flags.IntVar(&o.concurrency, "concurrency", 16, "requests under way at once")
	flags.DurationVar(&o.duration, "duration", 5*time.Second, "how long each is measured in a round")
	flags.StringVar(&o.logs, "logs", "", "a folder to save the lab's logs in")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.modes, o.connections = strings.Split(*modes, ","), strings.Split(*connections, ",")
	for _, c := range []struct {
		flag        string
		have, known []string
	}{{"-modes", o.modes, []string{pod, direct}}, {"-connections", o.connections, []string{"new", "kept"}}} {
		for _, name := range c.have {
			if !slices.Contains(c.known, name) {
				return o, fmt.Errorf("%s: %q is none of %s", c.flag, name, strings.Join(c.known, ", "))
			}
		}
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 100 || n > 100_000_000 {
			return o, fmt.Errorf("-sizes: %q is not a number of bytes from 100 to 100000000", text)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.rounds < 1 || o.concurrency < 1 || o.duration < 100*time.Millisecond {
		return o, errors.New("-rounds and -concurrency are from 1, -duration from 100ms")
	}
	return o, nil
}
