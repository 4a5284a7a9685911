package gobgp

import (
	"context"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// isThere tells whether somebody listens at a router whose session was just lost. If nobody does it was the router that ended: this side is then
// not to say that it has restarted itself (RFC 4724, 3: the R bit), or a router that comes back takes it out of those whose tables it waits for
// (4.1). The R bit in the router's own OPEN does not tell: FRR sets it for minutes after its start.
func isThere(p plan.Peer, id netip.Addr) bool {
	ctx, cancel := context.WithTimeout(context.Background(), openPause/2)
	defer cancel()
	for range 2 {
		conn, err := dial(ctx, p)
		if err != nil {
			return false
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() }) // before firstMessage sends an OPEN
		_, _, err = firstMessage(conn, p, id)                   // a router minds an end less after its OPEN
		stop()
		conn.Close()
		// One that ends closes its connections before its port, or after; one that goes on may close this one, too.
		if err == nil || pause(ctx, dyingTime) != nil {
			break
		}
	}
	return true
}

// dyingTime is how long after its connections the port of a process that ends may be closed.
const dyingTime = 100 * time.Millisecond
