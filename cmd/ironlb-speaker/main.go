// Command ironlb-speaker runs on each node: it programs the node's IPVS and firewall for the Services of type
// LoadBalancer and answers ARP and neighbour discovery for the addresses that the node owns.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ironlb-speaker:", err)
		os.Exit(1)
	}
}

// run returns when ctx ends or a part of the speaker fails for good.
func run(ctx context.Context, o options) error {
	log := o.logger()
	klog.SetSlogLogger(log)
	p, err := assemble(o, log)
	if err != nil {
		return err
	}
	defer p.close()
	log.Info("start", "node", o.nodeName, "apiserver", p.apiserver.Host, "metrics", p.listener.Addr().String())
	defer log.Info("stop; addresses, virtual servers and firewall stay", "node", o.nodeName)
	stop := context.AfterFunc(ctx, p.loop.Leave)
	defer stop()
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // of what the loop needs to hand over
	defer end()
	group, ctx := errgroup.WithContext(life)
	group.Go(func() error {
		defer end()
		return p.loop.Run(ctx)
	})
	for _, task := range p.tasks {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}
