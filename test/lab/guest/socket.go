package guest

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
	"github.com/ironlb/ironlb/test/lab/host"
)

// Serve lets other processes run commands in g through l, which it closes. It returns nil when ctx ends, and otherwise
// the reason for g's loss.
func (g *Guest) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	go func() {
		<-g.lost
		l.Close()
	}()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			go g.relay(conn)
		case ctx.Err() != nil:
			return nil
		default:
			return g.explain(err)
		}
	}
}

// relay connects conn to a stream of its own. It ends a broken stream with the reason, which the other process cannot
// detect.
func (g *Guest) relay(conn net.Conn) {
	defer conn.Close()
	out := wire.NewWriter(conn)
	stream, err := g.session.OpenStream()
	if err != nil {
		out.Send(wire.KindLost, []byte(g.explain(err).Error()))
		return
	}
	defer stream.Close()
	go func() {
		defer stream.Close() // the caller has closed: end its command
		io.Copy(stream, conn)
	}()
	for {
		kind, b, err := wire.Read(stream)
		if err != nil {
			out.Send(wire.KindLost, []byte(g.explain(err).Error()))
			return
		}
		if out.Send(kind, b) != nil || kind == wire.KindExit || kind == wire.KindFailed {
			return
		}
	}
}

// Remote is a guest served by another process at Socket.
type Remote struct{ Socket string }

// Start implements host.Host.
func (r Remote) Start(ctx context.Context, c host.Cmd) (host.Process, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return nil, fmt.Errorf("reach the guest (is it still served?): %w", err)
	}
	return start(ctx, conn, c, func(err error) error {
		return fmt.Errorf("%w: the process that serves it at %s ended: %w", ErrLost, r.Socket, err)
	})
}
