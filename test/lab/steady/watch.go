package steady

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/controlplane"
)

// AskEvery is how often a watcher asks for each address.
const AskEvery = 100 * time.Millisecond

// WatchConfig of a watcher.
type WatchConfig struct {
	Namespace, Interface string       // a bare port, whose kernel says nothing
	From4, From6         netip.Prefix // addresses that nobody has: each question is from another, so an answer tells which it is to
	Addrs                []netip.Addr // that are watched
}

// Watcher asks for addresses all the time, notes who answers, and who says unasked that it has one.
type Watcher struct {
	cfg   WatchConfig
	conn  *packet.Conn
	mac   net.HardwareAddr
	stop  context.CancelFunc
	group *errgroup.Group

	mu      sync.Mutex
	asked   map[netip.Addr][]*question // by the address asked for, in the order of time
	open    map[[2]netip.Addr]*question
	noticed []Notice
}

// question is one that was asked.
type question struct {
	at      time.Time
	answers []reply // one for each MAC, in the order of time
}

type reply struct {
	mac  string
	took time.Duration
}

// Notice is a frame that the watcher did not ask for.
type Notice struct {
	Frame
	At time.Time
}

// Watch starts a watcher.
func Watch(ctx context.Context, cfg WatchConfig) (*Watcher, error) {
	w := &Watcher{cfg: cfg, asked: map[netip.Addr][]*question{}, open: map[[2]netip.Addr]*question{}}
	err := controlplane.Within(cfg.Namespace, func() error {
		ifi, err := net.InterfaceByName(cfg.Interface)
		if err != nil {
			return err
		}
		w.mac = ifi.HardwareAddr
		w.conn, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_ALL, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s in %s: %w", cfg.Interface, cfg.Namespace, err)
	}
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	w.group, ctx = errgroup.WithContext(ctx)
	w.group.Go(func() error { return w.ask(ctx) })
	w.group.Go(func() error { return w.listen(ctx) })
	return w, nil
}

// Close ends the watcher and says why it ended by itself, if it did.
func (w *Watcher) Close() error {
	w.stop()
	err := w.conn.Close()
	return errors.Join(w.group.Wait(), err)
}

// Send puts a frame on the wire.
func (w *Watcher) Send(frame []byte) error {
	_, err := w.conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
	return err
}

// MAC of the watcher.
func (w *Watcher) MAC() net.HardwareAddr { return w.mac }

// ask asks for each address in turn, so that the questions are spread over the time.
func (w *Watcher) ask(ctx context.Context) error {
	if len(w.cfg.Addrs) == 0 {
		return nil
	}
	tick := time.NewTicker(AskEvery / time.Duration(len(w.cfg.Addrs)))
	defer tick.Stop()
	for n := 0; ; n++ {
		addr := w.cfg.Addrs[n%len(w.cfg.Addrs)]
		asker := w.asker(addr, n/len(w.cfg.Addrs))
		q := &question{at: time.Now()}
		w.mu.Lock()
		w.asked[addr] = append(w.asked[addr], q)
		w.open[[2]netip.Addr{addr, asker}] = q
		w.mu.Unlock()
		if err := w.Send(ask(addr, asker, w.mac)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("ask for %v: %w", addr, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// asker is who asks in the n-th round.
func (w *Watcher) asker(addr netip.Addr, n int) netip.Addr {
	from := w.cfg.From6
	if addr.Is4() {
		from = w.cfg.From4
	}
	span := 1<<(from.Addr().BitLen()-from.Bits()) - 2 // without the subnet's own and its last
	b := from.Masked().Addr().AsSlice()
	b[len(b)-1] += byte(1 + n%span)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (w *Watcher) listen(ctx context.Context) error {
	buf := make([]byte, 2048)
	for {
		n, _, err := w.conn.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read frames: %w", err)
		}
		if f, ok := Parse(buf[:n]); ok && slices.Contains(w.cfg.Addrs, f.Addr) {
			w.take(f, time.Now())
		}
	}
}

// take notes a frame.
func (w *Watcher) take(f Frame, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Kind == Ask && f.MAC == w.mac.String() {
		return // our own
	}
	if f.Kind != Answer {
		w.noticed = append(w.noticed, Notice{f, now})
		return
	}
	q := w.open[[2]netip.Addr{f.Addr, f.Asker}]
	if q == nil || f.Dst != w.mac.String() {
		return
	}
	if !slices.ContainsFunc(q.answers, func(r reply) bool { return r.mac == f.MAC }) {
		q.answers = append(q.answers, reply{f.MAC, now.Sub(q.at)})
	}
}

// Noticed returns the frames about an address since a moment that were not answers to the watcher.
func (w *Watcher) Noticed(addr netip.Addr, since time.Time) (out []Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.noticed {
		if n.Addr == addr && !n.At.Before(since) {
			out = append(out, n)
		}
	}
	return out
}

// Watched is what was seen of one address in a span of time.
type Watched struct {
	Asked      int
	Unanswered int
	Duplicates int      // questions that two stations answered
	MACs       []string // who answered, in the order of time; one that answers again after another stands there again
	All        []string // whoever answered, duplicates included, sorted
	Took       []time.Duration
}

// Moves counts how often another one answered than before.
func (w Watched) Moves() int { return max(0, len(w.MACs)-1) }

// Seen sums up what was seen of an address. A question whose answer may still come is left out at the end.
func (w *Watcher) Seen(addr netip.Addr, from, to time.Time) (s Watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.asked[addr] {
		if q.at.Before(from) || q.at.After(to) {
			continue
		}
		s.Asked++
		for _, r := range q.answers {
			if i, there := slices.BinarySearch(s.All, r.mac); !there {
				s.All = slices.Insert(s.All, i, r.mac)
			}
		}
		switch len(q.answers) {
		case 0:
			s.Unanswered++
		case 1:
			s.Took = append(s.Took, q.answers[0].took)
			if mac := q.answers[0].mac; len(s.MACs) == 0 || s.MACs[len(s.MACs)-1] != mac {
				s.MACs = append(s.MACs, mac)
			}
		default:
			s.Duplicates++
		}
	}
	return s
}

// Owner is who alone has answered every question for the address in the last span, but for those of the last answerTime: empty if
// there is none, or several.
func (w *Watcher) Owner(addr netip.Addr, now time.Time, span time.Duration) string {
	s := w.Seen(addr, now.Add(-span), now.Add(-answerTime))
	if s.Asked == 0 || s.Unanswered > 0 || s.Duplicates > 0 || len(s.MACs) != 1 {
		return ""
	}
	return s.MACs[0]
}

// answerTime is how long an answer may take on a busy machine.
const answerTime = 50 * time.Millisecond

// Owners is Owner of each watched address.
func (w *Watcher) Owners(now time.Time, span time.Duration) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, a := range w.cfg.Addrs {
		out[a] = w.Owner(a, now, span)
	}
	return out
}

// Spread counts addresses by owner.
func Spread(owners map[netip.Addr]string) map[string]int {
	n := map[string]int{}
	for mac := range maps.Values(owners) {
		n[mac]++
	}
	return n
}
