package health

import (
	"container/list"
	"net"
	"sync"
)

// mostOfServer is the connection limit of a server by itself. Above it the oldest connection is closed.
const mostOfServer = 256

// Bound returns a listener with a connection limit: a new connection replaces the oldest. A client that opens many and
// leaves them open therefore blocks no other client, and uses a bounded part of this process.
func Bound(l net.Listener) net.Listener { return bound(l, newConnLimiter(mostOfServer)) }

func bound(l net.Listener, limiters ...*connLimiter) net.Listener { return &boundListener{l, limiters} }

type boundListener struct {
	net.Listener
	limiters []*connLimiter
}

func (l *boundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn}
	for _, in := range l.limiters {
		c.release = append(c.release, in.acquire(c))
	}
	return c, nil
}

// counted is a connection that is released from its connection limiters when it is closed.
type counted struct {
	net.Conn
	release []func()
}

func (c *counted) Close() error {
	for _, release := range c.release {
		release()
	}
	return c.Conn.Close()
}

// connLimiter is a connection limiter: the open connections of one or several listeners, the oldest first.
type connLimiter struct {
	most int

	mu    sync.Mutex
	conns list.List // of *counted
}

func newConnLimiter(most int) *connLimiter { return &connLimiter{most: most} }

// acquire adds a connection and closes the oldest one above the limit.
func (c *connLimiter) acquire(conn *counted) (release func()) {
	c.mu.Lock()
	at := c.conns.PushBack(conn)
	var oldest *counted
	if c.conns.Len() > c.most {
		oldest = c.conns.Remove(c.conns.Front()).(*counted)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // its server detects that, and closes it as well
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns.Remove(at)
	}
}
