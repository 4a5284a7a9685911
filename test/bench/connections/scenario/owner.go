package scenario

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/connections"
	"github.com/ironlb/ironlb/test/lab/steady"
)

// owners observes which station answers for the addresses.
type owners interface {
	// Owner returns the hardware address of the only station that answered in the last span; "" for none or several.
	Owner(addr netip.Addr, now time.Time, span time.Duration) string
	// Moves counts changes of the answering station.
	Moves(addr netip.Addr, from, to time.Time) int
	Close() error
}

// watch starts the observation: from a bare port on this machine, in a guest from the client.
func (b *Bench) watch(ctx context.Context) (owners, error) {
	var addrs []netip.Addr
	for _, t := range b.targets {
		addrs = append(addrs, t.Addr())
	}
	if b.Cluster.Kernel == lab.Guest {
		return ask(b.Cluster.Client, addrs), nil
	}
	bare, err := b.Cluster.AddPort(ctx, "watch")
	if err != nil {
		return nil, err
	}
	w, err := steady.Watch(ctx, steady.WatchConfig{
		Namespace: bare.Namespace, Interface: bare.Interface, From4: lab.AskFrom, From6: lab.AskFrom6, Addrs: addrs,
	})
	if err != nil {
		return nil, err
	}
	return watched{w}, nil
}

// watched are the owners on this machine.
type watched struct{ *steady.Watcher }

func (w watched) Moves(addr netip.Addr, from, to time.Time) int {
	return w.Seen(addr, from, to).Moves()
}

// asked are the owners in a guest. The client asks for the IPv4 address about once a second. The one of IPv6 belongs to
// the same VirtualIP.
type asked struct {
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	answers []answer
}

type answer struct {
	at  time.Time
	mac string // "" if none, or several stations answered
}

// askedSpan is the least span with several requests.
const askedSpan = 4 * time.Second

func ask(client *lab.Machine, addrs []netip.Addr) *asked {
	ctx, stop := context.WithCancel(context.Background())
	a := &asked{stop: stop, done: make(chan struct{})}
	addr := addrs[0]
	for _, other := range addrs {
		if other.Is4() {
			addr = other
		}
	}
	go func() {
		defer close(a.done)
		for ctx.Err() == nil {
			at, mac := time.Now(), ""
			out, err := client.Exec(ctx, "arping", "-r", "-c", "1", "-w", "1", "-i", "eth0", addr.String())
			if macs := strings.Fields(out); err == nil && len(macs) == 1 {
				mac = strings.ToLower(macs[0])
			}
			a.mu.Lock()
			a.answers = append(a.answers, answer{at, mac})
			a.mu.Unlock()
			_ = wait(ctx, 500*time.Millisecond) // the guest has other work
		}
	}()
	return a
}

func (a *asked) Owner(_ netip.Addr, now time.Time, span time.Duration) string {
	stations := a.stations(now.Add(-max(span, askedSpan)), now)
	if len(stations) != 1 {
		return ""
	}
	return stations[0]
}

func (a *asked) Moves(_ netip.Addr, from, to time.Time) (n int) {
	last := ""
	for _, mac := range a.stations(from, to) {
		if mac == "" {
			continue
		}
		if last != "" && mac != last {
			n++
		}
		last = mac
	}
	return n
}

// stations returns the answering stations in chronological order, each once until another one, or none, answers.
func (a *asked) stations(from, to time.Time) (macs []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, answer := range a.answers {
		if answer.at.Before(from) || answer.at.After(to) {
			continue
		}
		if len(macs) == 0 || macs[len(macs)-1] != answer.mac {
			macs = append(macs, answer.mac)
		}
	}
	return macs
}

func (a *asked) Close() error {
	a.stop()
	<-a.done
	return nil
}

// clockReads is how often the client's clock is read: each read starts a program, and the shortest is the most exact.
const clockReads = 3

// inClientTime returns the fault by the client's clock, which in a guest is not this machine's. As far as that clock is
// unknown, the fault begins earlier and is done later, and a connection that breaks is one of a Pod that is gone.
func (b *Bench) inClientTime(ctx context.Context, f connections.Fault) (connections.Fault, error) {
	if b.Cluster.Kernel != lab.Guest {
		return f, nil
	}
	least, most := time.Duration(math.MinInt64), time.Duration(math.MaxInt64) // by how much the client's clock is ahead
	for range clockReads {
		before := time.Now()
		out, err := b.client().Exec(ctx, "date", "+%s.%N")
		after := time.Now()
		if err != nil {
			return f, err
		}
		seconds, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
		if err != nil {
			return f, fmt.Errorf("read the client's clock: %w", err)
		}
		read := time.UnixMilli(int64(seconds * 1000))
		least, most = max(least, read.Sub(after)), min(most, read.Sub(before))
	}
	gone := map[string]time.Time{}
	for pod, since := range f.Gone {
		gone[pod] = since.Add(least)
	}
	return connections.Fault{Began: f.Began.Add(least), Done: f.Done.Add(most), Gone: gone}, nil
}
