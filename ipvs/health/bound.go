package health

import (
	"container/list"
	"net"
	"sync"
)

// mostOfServer is the most connections of a server by itself. One too many ends the oldest.
const mostOfServer = 256

// Bound returns a listener whose connections are bounded in number: a new one takes the place of the oldest. So who opens many and
// leaves them open keeps nobody else from asking, and takes up no more of this process.
func Bound(l net.Listener) net.Listener { return bound(l, newCrowd(mostOfServer)) }

func bound(l net.Listener, crowds ...*crowd) net.Listener { return &boundListener{l, crowds} }

type boundListener struct {
	net.Listener
	crowds []*crowd
}

func (l *boundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn}
	for _, in := range l.crowds {
		c.leave = append(c.leave, in.enter(c))
	}
	return c, nil
}

// counted is a connection that leaves its crowds when it is closed.
type counted struct {
	net.Conn
	leave []func()
}

func (c *counted) Close() error {
	for _, leave := range c.leave {
		leave()
	}
	return c.Conn.Close()
}

// crowd are the open connections of one or several listeners, the oldest first.
type crowd struct {
	most int

	mu    sync.Mutex
	conns list.List // of *counted
}

func newCrowd(most int) *crowd { return &crowd{most: most} }

// enter lets a connection in and ends the oldest if there are too many.
func (c *crowd) enter(conn *counted) (leave func()) {
	c.mu.Lock()
	at := c.conns.PushBack(conn)
	var oldest *counted
	if c.conns.Len() > c.most {
		oldest = c.conns.Remove(c.conns.Front()).(*counted)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // its server notices, and closes it in turn
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns.Remove(at)
	}
}
