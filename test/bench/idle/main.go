// Command idle measures the CPU time and the memory of idle processes in labs of three nodes on this machine's kernel:
// IronLB's, kube-proxy's (mode nftables) and MetalLB's (L2). It prints Go's benchmark format on standard output and its
// progress on standard error. It needs root, and a machine without other load.
//
// Each peer (-peers) has its own lab, and starts again for each number of Services (-services):
//
//	ironlb             ironlb-ccm with leader election, ironlb-speaker (nftables, profile standard, serviceProxy) and
//	                   ironlb-bgpd (without a BGPPeer) on each node; no kube-proxy
//	ironlb-kube-proxy  the same without serviceProxy, which is the default of the chart, alongside kube-proxy
//	metallb            MetalLB's controller, and its speaker and kube-proxy on each node, all with their own settings
//
// Each Service is of type LoadBalancer, with an address from the peer's pool, one TCP port, no NodePort, and four
// ready endpoints on the three nodes. Nothing uses them, and no Pods run. A node renews its Lease each 10 s.
//
// A line for each process:
//
//	Idle/PROCESS/SERVICES/NODE  seconds of the window, and ns/op: CPU time per second
//	cpu-%       CPU time in percent of a core, with that of child processes such as nft
//	switches/s  voluntary context switches of all its threads; not those of child processes
//	RSS-MB      VmRSS at the end of the window: what a node pays
//	Pss-MB      the proportional share: here the nodes share the mapped program, on real nodes they do not
//
// A process counts as idle when its peer is ready, the API server has had fewer than five writes per second for ten
// seconds (of the lab, and leader election, are about one), and the CPU time of all processes of the peer has not
// fallen by more than a fifth in each of two further intervals of ten seconds. The window (-window) begins then. A peer
// that is not idle within -limit is measured in that state, and the progress reports it. The window includes what a
// process does regularly; Go collects garbage of an idle process once in two minutes, so a window of 60 s has that or
// not.
//
// With -threads a table follows on standard error for each speaker of IronLB: each thread with its CPU time, its
// voluntary context switches, its scheduling policy, and the system call in which it was seen most often, sampled once
// a second.
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

	"github.com/ironlb/ironlb/test/bench/services"
)

type options struct {
	sizes         []int
	peers         []string
	window, limit time.Duration
	threads       bool
	logs          string
}

func main() {
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	sizes := flag.String("services", "0,1000,5000", "numbers of Services, ascending")
	names := flag.String("peers", ironlbName+","+metallbName, "what to measure: "+strings.Join(peerNames, ", "))
	flag.DurationVar(&o.window, "window", time.Minute, "how long idle processes are measured")
	flag.DurationVar(&o.limit, "limit", 10*time.Minute, "how long a peer may take to be ready, and then to be idle")
	flag.BoolVar(&o.threads, "threads", false, "print a table of the threads of each ironlb-speaker on standard error")
	flag.StringVar(&o.logs, "logs", "", "a folder to save the labs' logs in")
	flag.Parse()
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > services.Most || len(o.sizes) > 0 && n <= o.sizes[len(o.sizes)-1] {
			return o, fmt.Errorf("-services %q: give ascending numbers from 0 to %d", *sizes, services.Most)
		}
		o.sizes = append(o.sizes, n)
	}
	for name := range strings.SplitSeq(*names, ",") {
		if !slices.Contains(peerNames, name) {
			return o, fmt.Errorf("-peers: %q is none of %s", name, strings.Join(peerNames, ", "))
		}
		o.peers = append(o.peers, name)
	}
	if o.window < time.Second || o.limit < time.Second {
		return o, errors.New("-window and -limit are from 1s")
	}
	return o, nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
