// Command ipvs compares service proxies: IronLB on IPVS, IronLB on nftables, kube-proxy in mode ipvs and in mode
// nftables. All run on the same node of one lab, one after the other, each on a fresh network namespace, with the same
// Services of four endpoints each. It prints Go's benchmark format on standard output and its progress on standard
// error. It needs root.
//
// Each Service has a ClusterIP and a LoadBalancer address, one TCP port, and no NodePort. Before the measurements each
// peer starts once, with at most 100 Services and without a result.
//
//	Cold/PEER/N    from the start of the process until everything is in the kernel: s, cpu-s, peak-MB
//	Change/PEER/N  from the write of one endpoint to the API until it is in the kernel: ms, max-ms; cpu-ms is the CPU
//	               time until then, extra-cpu-ms the CPU time beyond idling until the process is idle again,
//	               idle-cpu-ms/s that of an idle process: with many Services kube-proxy's mode ipvs never finishes
//	               its last sync
//	Memory/PEER/N  resident at the end: MB
//	Requests/PEER/N  by a client on the LAN through a LoadBalancer address, a new connection each: req/s, p99-ms
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
	sizes   []int
	peers   []string
	changes int
	load    time.Duration
	count   int
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == insideCommand {
		if err := inside(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
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

func parse() (options, error) {
	var o options
	sizes := flag.String("services", "100,1000,5000", "numbers of Services, ascending")
	names := flag.String("peers", strings.Join(peerNames(), ","), "what to measure")
	flag.IntVar(&o.changes, "changes", 10, "endpoint changes to measure")
	flag.DurationVar(&o.load, "load", 10*time.Second, "how long the client asks; 0: not at all")
	flag.IntVar(&o.count, "count", 1, "how often to measure everything")
	flag.Parse()
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxServices || len(o.sizes) > 0 && n <= o.sizes[len(o.sizes)-1] {
			return o, fmt.Errorf("-services %q: must be ascending numbers from 1 to %d", *sizes, maxServices)
		}
		o.sizes = append(o.sizes, n)
	}
	for name := range strings.SplitSeq(*names, ",") {
		if !slices.Contains(peerNames(), name) {
			return o, fmt.Errorf("-peers: %q is none of %s", name, strings.Join(peerNames(), ", "))
		}
		o.peers = append(o.peers, name)
	}
	if o.changes < 1 || o.count < 1 || o.load < 0 {
		return o, errors.New("-changes and -count must be 1 or more, -load not negative")
	}
	return o, nil
}
