// MPTCP is off: Linux knows the password of a session (RFC 2385) for TCP alone, and Go listens with MPTCP by itself.
//
//go:debug multipathtcp=0

// Command ironlb-bgpd speaks BGP and BFD for the speaker of its node. It keeps what the speaker wants when that is restarted, and
// starts a child that has GoBGP, and that may crash.
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
