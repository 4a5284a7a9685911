package virtualip

import (
	"time"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// settleFor is how long the lists of held addresses stay unchanged after a start, and after an outage of the API
	// server. The speakers may have elected other nodes meanwhile, and retry their reports every 5 s. A list written
	// earlier would move an address back.
	settleFor = 10 * time.Second
	// settleMost ends that although speakers still report changes. At writesPerSecond each, they need that long for
	// 2,400 addresses that one of them took over.
	settleMost = 2 * time.Minute
)

// Outages are the outages of the API server.
type Outages interface {
	// Settles returns when all speakers have had the time to report what happened in the last outage, and when that
	// ended. Zero: there was none.
	Settles(within time.Duration) (at, since time.Time)
}

// settles returns when the speakers have had time to report the owners, and since when they could. While reports
// arrive they are not complete: each speaker writes a limited number of statuses per second.
func (p *Placer) settles() (at, since time.Time) {
	at, since = p.started.Add(settleFor), p.started
	if later, after := p.outage.Settles(settleFor); later.After(at) {
		at, since = later, after
	}
	idle, most := p.reported.Add(settleFor), since.Add(settleMost)
	if p.reported.After(since) && idle.After(at) && at.Before(most) {
		at = idle
		if most.Before(at) {
			at = most
		}
	}
	return at, since
}

// recordReports records that a status names another owner than at the last pass, while not all has settled.
func (p *Placer) recordReports(now time.Time, have map[string]*v1alpha1.VirtualIP) {
	if p.settled(now) {
		p.owners = nil
		return
	}
	before := p.owners
	p.owners = make(map[string]string, len(have))
	for name, vip := range have {
		p.owners[name] = vip.Status.Node
		if node, known := before[name]; known && node != vip.Status.Node {
			p.reported = now
		}
	}
}

// mayBeHeld reports whether a node may hold the VirtualIP without having been able to report it.
func (p *Placer) mayBeHeld(vip *v1alpha1.VirtualIP) bool {
	made, ours := p.writer.made[vip.UID]
	_, since := p.settles()
	return len(vip.Spec.Nodes) > 0 && !(ours && made.After(since))
}

func (p *Placer) settled(now time.Time) bool {
	if p.started.IsZero() {
		p.started = now
	}
	at, _ := p.settles()
	return !now.Before(at)
}
