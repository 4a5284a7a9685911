package bgp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Time limits for the other side's Hello, and for reading a message. It is on the same machine.
const (
	helloLimit = 5 * time.Second
	writeLimit = 30 * time.Second
)

// Conn carries messages. One goroutine may send while another receives.
type Conn struct {
	conn    net.Conn
	in      *bufio.Reader
	lenient bool // the other side's version is newer
}

// NewConn returns a Conn that reads, writes and closes conn.
func NewConn(conn net.Conn) *Conn { return &Conn{conn: conn, in: bufio.NewReader(conn)} }

// Close closes the connection, and ends a pending Send and Receive.
func (c *Conn) Close() error { return c.conn.Close() }

// Send writes a message.
func (c *Conn) Send(m Message) error {
	line, err := encode(m)
	if err != nil {
		return err
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err = c.conn.Write(line)
	return err
}

// Receive waits for a message. The error is io.EOF if the other side closed the connection, and of type Refused if it
// sent a reason.
func (c *Conn) Receive() (Message, error) {
	line, err := c.line()
	if err != nil {
		return Message{}, err
	}
	m, err := decode(line, c.lenient)
	if err == nil && m.Refused != "" {
		err = Refused(m.Refused)
	}
	return m, err
}

// line returns the next line. The result is valid until the next call.
func (c *Conn) line() ([]byte, error) {
	var long []byte
	for {
		part, err := c.in.ReadSlice('\n')
		switch {
		case len(long)+len(part) > Limit:
			return nil, fmt.Errorf("receive a message: it is longer than %d octets", Limit)
		case err == nil && long == nil:
			return part, nil
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return long, nil
		case errors.Is(err, io.EOF) && len(long) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Refused is the reason why the other side refused the connection.
type Refused string

func (r Refused) Error() string { return "refused: " + string(r) }

// Call sends the first Hello, and returns the answer.
func (c *Conn) Call(role Role) (Hello, error) {
	if err := c.Send(hello(role)); err != nil {
		return Hello{}, fmt.Errorf("send Hello: %w", err)
	}
	return c.receiveHello()
}

// Answer waits for a hello, and answers it.
func (c *Conn) Answer(role Role) (Hello, error) {
	h, err := c.receiveHello()
	if err != nil {
		return h, err
	}
	if err := c.Send(hello(role)); err != nil {
		return h, fmt.Errorf("send Hello: %w", err)
	}
	return h, nil
}

func (c *Conn) receiveHello() (Hello, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(helloLimit)); err != nil {
		return Hello{}, err
	}
	c.lenient = true // a newer version may have more fields here
	m, err := c.Receive()
	if err != nil {
		return Hello{}, fmt.Errorf("wait for Hello: %w", err)
	}
	if m.Hello == nil {
		return Hello{}, errors.New("the other side sent no Hello")
	}
	if m.Hello.Oldest > version {
		why := fmt.Sprintf("the %s needs protocol version %d or later, this process has version %d: upgrade it", m.Hello.Role, m.Hello.Oldest, version)
		return *m.Hello, errors.Join(errors.New(why), c.Send(Message{Refused: why}))
	}
	c.lenient = m.Hello.Version > version
	return *m.Hello, c.conn.SetReadDeadline(time.Time{})
}
