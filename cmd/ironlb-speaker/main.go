// Command ironlb-speaker runs on each node: it programs the node's IPVS and firewall for the Services of type
// LoadBalancer and answers ARP and neighbor discovery for the addresses that the node owns.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/ironlb/ironlb/cmd/internal/version"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ironlb-speaker:", err)
		os.Exit(1)
	}
}

// run returns when stop is done and the addresses of this node are handed over, or when a part of the speaker fails
// permanently.
func run(stop context.Context, o options, log *slog.Logger) error {
	klog.SetSlogLogger(log)
	retain := make(chan os.Signal, 1)
	signal.Notify(retain, retainSignal)
	defer signal.Stop(retain)
	p, err := assemble(o, log)
	if err != nil {
		return err
	}
	defer p.close()
	log.Info("start", "version", version.String(), "node", o.nodeName,
		"apiserver", p.apiserver.Host, "metrics", p.listener.Addr().String())
	defer log.Info("stop; addresses, virtual servers and firewall stay", "node", o.nodeName)
	life, end := context.WithCancel(context.WithoutCancel(stop)) // outlives stop: the loop needs it to hand over
	defer end()
	p.run(func(life context.Context) error {
		awaitEnd(stop, life, retain, p.loop, log)
		return nil
	})
	group, ctx := errgroup.WithContext(life)
	group.Go(func() error {
		defer end()
		return p.loop.Run(ctx)
	})
	for _, task := range p.tasks {
		group.Go(func() error { return task(ctx) })
	}
	err = group.Wait()
	if p.members.Left() { // the others take over the addresses that the kernel may still answer for
		err = errors.Join(err, p.link.ReleaseAll())
	}
	return err
}
