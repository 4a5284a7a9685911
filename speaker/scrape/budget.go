package scrape

import (
	"errors"
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

const (
	// reviewsOfClient and handshakesOfClient are what the address of a client may have in a second, and at once: burst.
	// A Prometheus needs one review a minute, and one handshake for each target.
	reviewsOfClient, handshakesOfClient, burst = 1, 2, 10
	// handshakesOfAll is what all addresses may have. A handshake takes 0.1 ms of a core, with a key of RSA 2 ms.
	handshakesOfAll = 50
)

// errBudget refuses a client before it costs anything.
var errBudget = errors.New("its address has too many requests for metrics that need a review or a handshake")

// budget limits how often clients may do something. Its size is constant: addresses with the same hash share a bucket.
type budget struct {
	now  func() time.Time
	seed maphash.Seed

	mu      sync.Mutex
	clients [256]bucket
	all     bucket
}

// newBudget returns a budget per second of each address, and of all; 0: no limit.
func newBudget(ofClient, ofAll float64) *budget {
	b := &budget{now: time.Now, seed: maphash.MakeSeed(), all: bucket{rate: ofAll, most: ofAll, left: ofAll}}
	for i := range b.clients {
		b.clients[i] = bucket{rate: ofClient, most: burst, left: burst}
	}
	return b
}

// take reports whether a client may go on. What its own budget refuses does not count for all.
func (b *budget) take(client string) bool {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clients[b.bucket(client)].take(now) && (b.all.rate == 0 || b.all.take(now))
}

// bucket is the place of a client. A host has a whole /64 of IPv6.
func (b *budget) bucket(client string) uint64 {
	at, _ := netip.ParseAddrPort(client) // else all such clients share one
	bits := 32
	if at.Addr().Is6() && !at.Addr().Is4In6() {
		bits = 64
	}
	network, _ := at.Addr().Unmap().Prefix(bits)
	return maphash.Comparable(b.seed, network) % uint64(len(b.clients))
}

// bucket is a token bucket.
type bucket struct {
	rate, most, left float64
	at               time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.left = min(b.most, b.left+b.rate*now.Sub(b.at).Seconds())
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
