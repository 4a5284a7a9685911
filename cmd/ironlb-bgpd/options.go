package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironlb/ironlb/cmd/internal/logs"
	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/speaker/bfd"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/unixsocket"
)

// options are the flags.
type options struct {
	socket     string
	hold       time.Duration
	peerMemory uint // MiB
	logs       logs.Options
}

func (o options) check() error {
	if err := unixsocket.Check("--socket", o.socket); err != nil {
		return err
	}
	if o.hold < 0 {
		return fmt.Errorf("--hold is %v: it must not be negative, and 0 means for ever", o.hold)
	}
	if o.peerMemory != 0 && o.peerMemory < leastPeerMemory {
		return fmt.Errorf("--peer-memory is %d: it must be at least %d (MiB), and 0 means no limit",
			o.peerMemory, leastPeerMemory)
	}
	return nil
}

// command returns the command line. The environment is read only here.
func command() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "ironlb-bgpd",
		Short: "Run BGP and BFD for the speaker of this node",
		Long: `ironlb-bgpd runs alongside ironlb-speaker, in the host's network namespace. It needs no capability, and better has CAP_SYS_NICE: it keeps BFD on time on a busy node.

It waits for the speaker on a unix socket and does what that wants: sessions, routes, BFD. When the speaker ends, all of that stays for the
time of --hold. GoBGP runs in a child for each peer, which is started again when it ends. The speaker serves its metrics at /metrics/bgpd.

SIGTERM ends it. Peers with graceful restart get no message and keep the routes until it is back or their time is up. The others get their
routes with the community GRACEFUL_SHUTDOWN (RFC 8326), and two seconds later they are withdrawn.`,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			log, err := o.logs.Logger(os.Stderr)
			if err != nil {
				return err
			}
			if os.Getenv("GOGC") == "" {
				bfd.CollectRarely(idleHeap)
			}
			return run(cmd.Context(), o, log)
		},
	}
	root.PersistentFlags().StringVar(&o.socket, "socket", bgp.DefaultSocket, "where the speaker is awaited: an absolute path, in a folder of its own, which is made for this user alone")
	o.logs.AddFlags(root.PersistentFlags())
	root.Flags().DurationVar(&o.hold, "hold", 10*time.Minute, "how long routes stay announced without a speaker, 0 for ever")
	root.PersistentFlags().UintVar(&o.peerMemory, "peer-memory", defaultPeerMemory,
		"memory in MiB that the process of each peer may have, 0 for no limit")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(healthyCommand(&o), childCommand(&o))
	return root
}

func healthyCommand(o *options) *cobra.Command {
	var ready bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "healthy",
		Short: "Ask the ironlb-bgpd of --socket whether it lives: exit status 0 if it answers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit <= 0 {
				return fmt.Errorf("--timeout is %v: it must be more than 0, such as 3s", limit)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			h, err := bgp.QueryHealth(ctx, o.socket)
			if err == nil && ready && h.Problem != "" {
				err = errors.New(h.Problem)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "fail also while GoBGP is not running although there are peers")
	cmd.Flags().DurationVar(&limit, "timeout", 3*time.Second, "how long it may take")
	return cmd
}

func childCommand(o *options) *cobra.Command {
	var peer string
	cmd := &cobra.Command{
		Use:    "gobgp",
		Short:  "What ironlb-bgpd starts as its child",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.logs.Logger(os.Stderr)
			if err != nil {
				return err
			}
			if err := limitMemory(o.peerMemory); err != nil {
				return err
			}
			err = runChild(context.WithoutCancel(cmd.Context()), log.With("peer", peer))
			if errors.Is(err, io.EOF) {
				return nil // the parent has released it
			}
			return err
		},
	}
	cmd.Flags().StringVar(&peer, "peer", "", "the peer's name, for the log and to be seen in a list of processes")
	return cmd
}
