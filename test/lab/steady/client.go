package steady

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/controlplane"
)

const (
	// Every is the interval between requests, and between connection attempts.
	Every = 5 * time.Millisecond
	// ConnectLimit is less than the second after which TCP retransmits a SYN. An attempt whose SYN or answer is lost
	// has failed.
	ConnectLimit = 900 * time.Millisecond
)

// Target is the target of a client.
type Target struct {
	UDP netip.AddrPort // answers any datagram
	TCP netip.AddrPort // accepts connections
}

// Client sends a datagram from one socket each Every, and opens and closes a new connection each Every.
type Client struct {
	target Target
	halt   chan struct{}
	ended  chan struct{}

	mu   sync.Mutex
	seen record
	err  error // the error that ended it
}

// record holds a client's observations, each list in chronological order.
type record struct {
	sent, answered []time.Time // datagrams
	attempts       []attempt   // decided attempts, by their end
	late           []lateness
}

type attempt struct {
	began, ended time.Time
	err          error // nil: connected
}

// lateness records a late tick of the client itself, which may be the cause of a gap.
type lateness struct {
	at time.Time
	by time.Duration
}

// Start starts a client in a network namespace of this machine.
func Start(namespace string, t Target) (*Client, error) {
	c := &Client{target: t, halt: make(chan struct{}), ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(c.ended)
		// All sockets are created on this goroutine's thread, so in the namespace.
		err := controlplane.Within(namespace, func() error {
			l, err := newLoop(c)
			started <- err
			if err != nil {
				return nil
			}
			defer l.close()
			defer hurry()()
			return l.run()
		})
		select {
		case started <- err: // the namespace could not be joined
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
	}()
	if err := <-started; err != nil {
		<-c.ended
		return nil, fmt.Errorf("start a client of %v: %w", t.UDP, err)
	}
	return c, nil
}

// hurry raises the thread's priority as far as permitted: a delay here would be recorded as an outage. The returned
// function restores the priority.
func hurry() (undo func()) {
	const most = -20
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 minus the nice value
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, most) != nil {
		return func() {}
	}
	return func() { unix.Setpriority(unix.PRIO_PROCESS, 0, 20-raw) } // lowering the priority is always allowed
}

// Stop ends the client when the pending attempts are decided. It may be called once.
func (c *Client) Stop() error {
	close(c.halt)
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return fmt.Errorf("client of %v: %w", c.target.UDP, c.err)
	}
	return nil
}

// loop is the client's thread: a timer, the datagram socket and the pending connections, in one epoll.
type loop struct {
	c                 *Client
	epoll, timer, udp int
	pending           map[int]time.Time // connecting sockets, with their start
	order             []connecting      // of pending, oldest first; may hold decided ones
	stopping          bool
	due               time.Time // of the next tick
}

// connecting identifies an attempt: socket numbers are reused.
type connecting struct {
	fd    int
	began time.Time
}

func newLoop(c *Client) (l *loop, err error) {
	l = &loop{c: c, epoll: -1, timer: -1, udp: -1, pending: map[int]time.Time{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return l, fmt.Errorf("epoll: %w", err)
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return l, fmt.Errorf("timerfd: %w", err)
	}
	if l.udp, err = socket(unix.SOCK_DGRAM, c.target.UDP); err != nil {
		return l, err
	}
	if err := unix.Connect(l.udp, sockaddr(c.target.UDP)); err != nil {
		return l, fmt.Errorf("connect to %v: %w", c.target.UDP, err)
	}
	for _, fd := range []int{l.timer, l.udp} {
		if err := l.add(fd, unix.EPOLLIN); err != nil {
			return l, err
		}
	}
	every := unix.NsecToTimespec(Every.Nanoseconds())
	l.due = time.Now().Add(Every)
	if err := unix.TimerfdSettime(l.timer, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		return l, fmt.Errorf("timerfd: %w", err)
	}
	return l, nil
}

func (l *loop) add(fd int, events uint32) error {
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

func (l *loop) close() {
	for fd := range l.pending {
		unix.Close(fd)
	}
	for _, fd := range []int{l.udp, l.timer, l.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (l *loop) run() error {
	events := make([]unix.EpollEvent, 64)
	for !l.stopping || len(l.pending) > 0 {
		n, err := unix.EpollWait(l.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		now := time.Now()
		for _, e := range events[:n] {
			switch fd := int(e.Fd); fd {
			case l.timer:
				if err := l.tick(now); err != nil {
					return err
				}
			case l.udp:
				l.read(now)
			default:
				l.decide(fd, now, nil)
			}
		}
	}
	return nil
}

// tick is the tick of each Every.
func (l *loop) tick(now time.Time) error {
	var ticks [8]byte
	unix.Read(l.timer, ticks[:]) // only rearms the timer
	if by := now.Sub(l.due); by > Every {
		l.c.record(func(r *record) { r.late = append(r.late, lateness{now, by}) })
	}
	for !l.due.After(now) {
		l.due = l.due.Add(Every)
	}
	l.expire(now)
	select {
	case <-l.c.halt:
		l.stopping = true
		return nil
	default:
	}
	// A missing answer records the datagram's errors (no neighbor, refused).
	unix.Write(l.udp, []byte("who\n"))
	l.c.record(func(r *record) { r.sent = append(r.sent, now) })
	return l.connect(now)
}

func (l *loop) connect(now time.Time) error {
	fd, err := socket(unix.SOCK_STREAM, l.c.target.TCP)
	if err != nil {
		return err
	}
	// It is closed by a reset: thousands of lingering closed connections would exhaust the ports.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return fmt.Errorf("set SO_LINGER: %w", err)
	}
	l.pending[fd], l.order = now, append(l.order, connecting{fd, now})
	if err := unix.Connect(fd, sockaddr(l.c.target.TCP)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		l.decide(fd, now, err)
		return nil
	}
	return l.add(fd, unix.EPOLLOUT)
}

// decide records the result of an attempt; without an error, the socket's own error is used.
func (l *loop) decide(fd int, now time.Time, err error) {
	began, pending := l.pending[fd]
	if !pending {
		return
	}
	if err == nil {
		var code int
		if code, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = unix.Errno(code)
		}
	}
	delete(l.pending, fd)
	unix.Close(fd)
	l.c.record(func(r *record) { r.attempts = append(r.attempts, attempt{began, now, err}) })
}

var errNoAnswer = errors.New("no answer within " + ConnectLimit.String())

// expire ends attempts that take too long.
func (l *loop) expire(now time.Time) {
	for len(l.order) > 0 {
		a := l.order[0]
		if l.pending[a.fd].Equal(a.began) {
			if now.Sub(a.began) < ConnectLimit {
				return
			}
			l.decide(a.fd, now, errNoAnswer)
		}
		l.order = l.order[1:]
	}
}

func (l *loop) read(now time.Time) {
	var buf [1500]byte
	for {
		n, err := unix.Read(l.udp, buf[:])
		if n <= 0 || err != nil {
			return // nothing more, or an ICMP error, recorded as a missing answer
		}
		l.c.record(func(r *record) { r.answered = append(r.answered, now) })
	}
}

func (c *Client) record(do func(*record)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(&c.seen)
}

func socket(kind int, to netip.AddrPort) (int, error) {
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket for %v: %w", to, err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
