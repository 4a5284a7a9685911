package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// retainSignal announces that the next SIGTERM is for a restart.
const retainSignal = syscall.SIGUSR1

// ender is the part of the loop that ends the process.
type ender interface {
	Retain()
	Leave()
}

// awaitEnd calls loop.Leave when stop is done, and loop.Retain before that if requested, until life ends. One goroutine
// receives both, so that an earlier signal counts first.
func awaitEnd(stop, life context.Context, retain <-chan os.Signal, loop ender, log *slog.Logger) {
	asked := func() {
		log.Info("about to be restarted: if SIGTERM comes within a minute, the kernel answers for the addresses of this node")
		loop.Retain()
	}
	for {
		select {
		case <-life.Done():
			return
		case <-retain:
			asked()
		case <-stop.Done():
			select {
			case <-retain:
				asked()
			default:
			}
			loop.Leave()
			return
		}
	}
}

func retainCommand() *cobra.Command {
	var pid int
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "retain",
		Short: "Announce a restart of the speaker: its addresses stay on this node",
		Long: `Send SIGUSR1 to the speaker of this container. If it gets SIGTERM within a minute after that, it does not hand over the addresses
that this node owns: the kernel answers for them, for two minutes at most, until the next speaker starts on this node.
A node that is decommissioning (drained, excluded, shut down, deleted) hands over all the same.

The chart runs it as the preStop hook of the Pod, so that an upgrade moves no address. It ends --wait after the signal: a node that
shuts down reports it at the same time as it ends its Pods.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := syscall.Kill(pid, retainSignal); err != nil {
				return fmt.Errorf("send SIGUSR1 to process %d (give --pid outside of a container): %w", pid, err)
			}
			select {
			case <-cmd.Context().Done():
			case <-time.After(wait):
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&pid, "pid", 1, "process of the speaker")
	cmd.Flags().DurationVar(&wait, "wait", time.Second, "how long to wait after the signal")
	return cmd
}
