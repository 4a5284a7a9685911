// MPTCP is off: Linux supports the password of a session (RFC 2385) only for TCP, and Go listens with MPTCP by default.
//go:debug multipathtcp=0

// Command ironlb-bgpd runs BGP and BFD for the speaker of its node. It keeps the speaker's desired state across
// restarts of the speaker. GoBGP runs in a child process, which may crash.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ironlb-bgpd:", err)
		os.Exit(1)
	}
}
