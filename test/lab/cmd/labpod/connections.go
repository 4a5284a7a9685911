package main

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/connections"
)

// keepConnections runs a client of package connections until SIGTERM.
func keepConnections(args []string) error {
	c := connections.Client{Out: os.Stdout}
	flags := flag.NewFlagSet("labpod connections", flag.ContinueOnError)
	flags.IntVar(&c.Kept, "kept", 1, "connections that stay until SIGTERM")
	flags.DurationVar(&c.Every, "every", time.Second, "time from one line of a connection to the next")
	flags.DurationVar(&c.Open, "open", 0, "time from one additional connection to the next; 0: none")
	flags.IntVar(&c.Lines, "lines", 3, "lines of an additional connection")
	flags.DurationVar(&c.Bound, "bound", 10*time.Second, "time after which an answer, or a connection, is missing")
	flags.IntVar(&c.Port, "port", 0, "the client's first own port, from the lowest one that it uses")
	flags.StringVar(&c.Interface, "interface", "", "where packets are captured; empty: not")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, arg := range flags.Args() {
		target, err := netip.ParseAddrPort(arg)
		if err != nil {
			return err
		}
		c.Targets = append(c.Targets, target)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return c.Run(ctx)
}
