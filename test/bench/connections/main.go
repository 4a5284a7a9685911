// Command connections counts the connections that break when the owner of an address changes or dies, a router chooses
// other paths, or endpoints come and go. See package scenario for the lab, and docs/development/connections.md for the
// meaning of the columns.
//
// Each kind of forwarding (-modes) has its own lab, with the address on the client's LAN and then with the address
// routed by BGP over three nodes. Rows are in Go's benchmark format on standard output, and as a table at the end. Each
// row and what broke is on standard error as it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/bench/connections/scenario"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
)

type options struct {
	scenario.Config
	modes, networks []string
	only            *regexp.Regexp
	rounds          int
	logs            string
}

// Networks.
const (
	onLAN  = "lan"
	routed = "bgp"
)

func main() {
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	rows, err := o.run(ctx)
	if len(rows) > 0 {
		fmt.Println()
		err = errors.Join(err, connections.Table(os.Stdout, rows))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	var modes, networks, only string
	flag.StringVar(&modes, "modes", strings.Join(scenario.Modes, ","), "ways of forwarding, in this order")
	flag.StringVar(&networks, "networks", onLAN+","+routed, "lan: the client is on the nodes' LAN; bgp: behind a router")
	flag.StringVar(&o.DataPlane, "dataplane", scenario.NFTables,
		"data plane of the speakers and mode of kube-proxy: nftables, or ipvs, in a guest if this kernel has none")
	flag.StringVar(&only, "run", ".", "regular expression: which faults")
	flag.IntVar(&o.rounds, "rounds", 1, "how often each fault happens")
	flag.IntVar(&o.Conns, "conns", 1000, "established connections")
	flag.DurationVar(&o.Every, "every", time.Second, "time from one line of a connection to the next")
	flag.DurationVar(&o.Open, "open", 20*time.Millisecond, "time from one additional connection to the next")
	flag.DurationVar(&o.Bound, "bound", 10*time.Second, "time after which an answer is missing")
	flag.DurationVar(&o.Watch, "watch", 10*time.Second, "how long connections are observed after the effect of a fault")
	flag.StringVar(&o.Disturb, "disturb", "", "make the owner, or node1, differ from the other nodes during each fault: slots or conntrack")
	flag.BoolVar(&o.Sync, "sync", false, "with -dataplane ipvs: the kernel's sync daemons run on each node")
	flag.StringVar(&o.logs, "logs", "", "a folder to save the lab's logs in, with all that the client observed")
	flag.Parse()
	o.Progress, o.Keep = os.Stderr, o.logs != ""
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("-run: %w", err)
	}
	o.modes, o.networks = strings.Split(modes, ","), strings.Split(networks, ",")
	for _, c := range []struct {
		flag        string
		have, known []string
	}{
		{"-modes", o.modes, scenario.Modes},
		{"-networks", o.networks, []string{onLAN, routed}},
		{"-dataplane", []string{o.DataPlane}, []string{scenario.NFTables, scenario.IPVS}},
		{"-disturb", []string{o.Disturb}, []string{"", scenario.Slots, scenario.Conntrack}},
	} {
		for _, name := range c.have {
			if !slices.Contains(c.known, name) {
				return o, fmt.Errorf("%s: %q is none of %s", c.flag, name, strings.Join(c.known, ", "))
			}
		}
	}
	if o.Sync && o.DataPlane != scenario.IPVS {
		return o, errors.New("-sync: only IPVS has sync daemons: set -dataplane ipvs")
	}
	if o.Conns < 1 || o.rounds < 1 || o.Every <= 0 || o.Open <= 0 || o.Bound <= 0 || o.Watch < 0 {
		return o, errors.New("-conns and -rounds are from 1, -every, -open and -bound above 0, -watch from 0")
	}
	return o, nil
}

func (o options) run(ctx context.Context) (rows []connections.Row, err error) {
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/connections\n", runtime.GOOS, runtime.GOARCH)
	for _, network := range o.networks {
		for _, mode := range o.modes {
			cfg := o.Config
			cfg.Mode, cfg.BGP = mode, network == routed
			more, err := o.runIn(ctx, cfg)
			if rows = append(rows, more...); err != nil {
				return rows, fmt.Errorf("%s, %s: %w", mode, network, err)
			}
		}
	}
	return rows, nil
}

// runIn runs the scenarios in one lab.
func (o options) runIn(ctx context.Context, cfg scenario.Config) (rows []connections.Row, err error) {
	var all []scenario.Scenario
	for _, s := range scenario.Of(cfg.BGP) {
		if o.only.MatchString(s.Name) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	c, err := lab.New(ctx, scenario.Lab(cfg))
	if err != nil {
		return nil, err
	}
	defer func() {
		if o.logs != "" {
			err = errors.Join(err, c.SaveLogs(fmt.Sprintf("%s-%s-%t", o.logs, cfg.Mode, cfg.BGP)))
		}
		err = errors.Join(err, c.Close())
	}()
	b, err := scenario.Use(ctx, c, cfg)
	defer func() { err = errors.Join(err, b.Close()) }()
	if err != nil {
		return nil, err
	}
	if cfg.Mode == scenario.Direct {
		if err := b.WaitForwarding(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "left out: %s: %v\n", cfg.Mode, err)
			return nil, nil
		}
	}
	for _, s := range all {
		for range o.rounds {
			row, err := b.Run(ctx, s)
			if err != nil {
				return rows, fmt.Errorf("%s: %w", s.Name, err)
			}
			if cfg.BGP {
				row.Fault += ", BGP"
			}
			rows = append(rows, row)
			fmt.Println(row.Benchmark(runtime.GOMAXPROCS(0)))
			fmt.Fprintf(os.Stderr, "%s, %s: %s; %d moves; answers of %d of %d came through another node than the Pod's; "+
				"the client was %s late, %d packets were not captured\n",
				row.Fault, row.Mode, row.Count, row.Moves, row.Answered.Broken, row.Answered.All, row.Late, row.Dropped)
		}
	}
	return rows, nil
}
