package gobgp

import (
	"context"
	"net/netip"
	"time"

	"github.com/ironlb/ironlb/speaker/routes"
)

// acceptsConnections reports whether a router with a lost session still accepts connections. If it does not, the router
// has ended. Then this side must not send that it has restarted itself (RFC 4724, 3: the R bit), because a restarted
// router removes such a peer from those whose tables it waits for (4.1). The R bit in the router's own OPEN is no
// indication: FRR sets it for minutes after its start.
func acceptsConnections(p routes.Peer, id netip.Addr) bool {
	ctx, cancel := context.WithTimeout(context.Background(), openPause/2)
	defer cancel()
	for range 2 {
		conn, err := dial(ctx, p)
		if err != nil {
			return false
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() }) // before firstMessage sends an OPEN
		_, _, err = firstMessage(conn, p, id)                   // an end after its OPEN affects a router less
		stop()
		conn.Close()
		// A router that ends closes its connections before or after its port; one that continues may close this
		// connection, too.
		if err == nil || pause(ctx, portCloseDelay) != nil {
			break
		}
	}
	return true
}

// portCloseDelay is the maximum delay between the connections and the port of an ending process being closed.
const portCloseDelay = 100 * time.Millisecond
