package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/ironlb/ironlb/cmd/internal/echo"
)

// idleCommand runs containers that wait: that of the Pod whose init container has cleaned the node, since a DaemonSet's Pods
// do not end, and clients of "kubectl ironlb connectivity test", in which it starts echo request.
func idleCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle",
		Short:  "Wait for SIGTERM",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}

// echoCommand has the server and the clients of "kubectl ironlb connectivity test", which runs them in the speaker's image:
// each node has that.
func echoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "echo",
		Short:  "Server and clients of kubectl ironlb connectivity test",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	var port uint16
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Answer with the name of this Pod, or the address of the client",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return echo.Serve(cmd.Context(), port) },
	}
	serve.Flags().Uint16Var(&port, "port", 8080, "the TCP port")
	var count, perSecond int
	request := &cobra.Command{
		Use:   "request URL",
		Short: "Make requests, and print the result of each as a line of JSON",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := json.NewEncoder(cmd.OutOrStdout())
			return echo.Requests(cmd.Context(), count, perSecond, func(ctx context.Context) echo.Transfer {
				return echo.Request(ctx, args[0])
			}, func(t echo.Transfer) error { return out.Encode(t) })
		},
	}
	request.Flags().IntVar(&count, "count", 1, "the number of requests, one after the other, each on a new connection")
	request.Flags().IntVar(&perSecond, "per-second", 0, "limit of their rate; 0: none")
	cmd.AddCommand(serve, request)
	return cmd
}
