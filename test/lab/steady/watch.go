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

// AskEvery is a watcher's request interval for each address.
const AskEvery = 100 * time.Millisecond

// WatchConfig of a watcher.
type WatchConfig struct {
	Namespace, Interface string       // a bare port, whose kernel sends nothing
	From4, From6         netip.Prefix // unused addresses: the source differs in each request, so an answer identifies its request
	Addrs                []netip.Addr // the watched addresses
}

// Watcher requests addresses continuously, and records the answers and the unsolicited advertisements.
type Watcher struct {
	cfg   WatchConfig
	conn  *packet.Conn
	mac   net.HardwareAddr
	stop  context.CancelFunc
	group *errgroup.Group

	mu      sync.Mutex
	asked   map[netip.Addr][]*question // by the requested address, in chronological order
	open    map[[2]netip.Addr]*question
	noticed []Notice
}

// question is one request.
type question struct {
	at      time.Time
	answers []reply // one for each MAC, in chronological order
}

type reply struct {
	mac  string
	took time.Duration
}

// Notice is a frame that does not answer the watcher.
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

// Close ends the watcher and returns the error that ended it earlier, if any.
func (w *Watcher) Close() error {
	w.stop()
	err := w.conn.Close()
	return errors.Join(w.group.Wait(), err)
}

// Send transmits a frame.
func (w *Watcher) Send(frame []byte) error {
	_, err := w.conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
	return err
}

// MAC of the watcher.
func (w *Watcher) MAC() net.HardwareAddr { return w.mac }

// ask requests one address after another, so that the requests are spread over time.
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

// asker returns the source address of the n-th round.
func (w *Watcher) asker(addr netip.Addr, n int) netip.Addr {
	from := w.cfg.From6
	if addr.Is4() {
		from = w.cfg.From4
	}
	span := 1<<(from.Addr().BitLen()-from.Bits()) - 2 // without the first and the last address of the subnet
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

// take records a frame.
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

// Noticed returns the frames about an address since a time that were not answers to the watcher.
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

// Watched summarizes the observations of one address in a span of time.
type Watched struct {
	Asked      int
	Unanswered int
	Duplicates int      // requests answered by several stations
	MACs       []string // answering stations in chronological order; a station that answers after another one appears again
	All        []string // all answering stations, duplicates included, sorted
	Took       []time.Duration
}

// Moves counts changes of the answering station.
func (w Watched) Moves() int { return max(0, len(w.MACs)-1) }

// Seen summarizes the observations of an address. Choose to so that outstanding answers have arrived.
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

// Owner returns the only station that answered every request for the address in the last span, except those of the last
// answerTime. It returns "" for none or several.
func (w *Watcher) Owner(addr netip.Addr, now time.Time, span time.Duration) string {
	s := w.Seen(addr, now.Add(-span), now.Add(-answerTime))
	if s.Asked == 0 || s.Unanswered > 0 || s.Duplicates > 0 || len(s.MACs) != 1 {
		return ""
	}
	return s.MACs[0]
}

// answerTime is the maximum time to an answer on a busy machine.
const answerTime = 50 * time.Millisecond

// Owners returns the Owner of each watched address.
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
