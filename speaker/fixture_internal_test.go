package speaker

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/view"
)

type fixtureInternal struct{ f *fixture }

func (i fixtureInternal) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return i.f.internal.ListOf(addrs)
}

func (i fixtureInternal) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	return i.f.internal.Virtuals()
}

func (i fixtureInternal) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	return i.f.internal.Apply(ops)
}

func (i fixtureInternal) SetPods(pods ipvs.PodSources) error {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	if pods.Equal(i.f.pods) {
		return nil
	}
	if err := i.f.change("pods"); err != nil {
		return err
	}
	i.f.pods = pods
	return nil
}

type fixtureConntrack struct{ f *fixture }

// Clean checks that the virtual servers are in their final state, and that the table has the serving and the draining
// real servers of each.
func (c fixtureConntrack) Clean(_ context.Context, table ipvs.Table) (int, error) {
	c.f.mu.Lock()
	slow := c.f.slowClean
	c.f.mu.Unlock()
	time.Sleep(slow) // a mutex held meanwhile would stop the clock of the bubble
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.f.change("conntrack"); err != nil {
		return 0, err
	}
	c.f.cleanings = append(c.f.cleanings, time.Now())
	all, _ := c.f.kernel.List()
	internal, _ := c.f.internal.List()
	for key, vs := range table {
		want := append(serving(all[key]), serving(internal[key])...)
		slices.SortFunc(want, netip.AddrPort.Compare)
		got := slices.SortedFunc(slices.Values(serving(vs)), netip.AddrPort.Compare)
		if want = slices.Compact(want); !slices.Equal(got, want) {
			c.f.wrong("conntrack: real servers %v of %v, want %v", got, key, want)
		}
		for _, reals := range []map[netip.AddrPort]ipvs.RealServer{all[key].RealServers, internal[key].RealServers} {
			for at := range reals {
				if !has(vs.RealServers, at) {
					c.f.wrong("conntrack lacks %v, a real server of %v", at, key)
				}
			}
		}
		c.f.cleaned = append(c.f.cleaned, key)
		c.f.tracked[key] = vs
	}
	return c.f.entries, nil
}

type fixturePorts struct{ f *fixture }

func (p fixturePorts) Set(ports map[pools.ServiceKey]forwarding.HealthPort) map[pools.ServiceKey]error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.f.ports = ports
	errs := map[pools.ServiceKey]error{}
	for key := range ports {
		if err := p.f.failPorts[key]; err != nil {
			errs[key] = err
			delete(p.f.ports, key)
		}
	}
	return errs
}

type fixtureChecks struct{ f *fixture }

func (c fixtureChecks) Set(checks map[view.Check]struct{}) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.checks = checks
}
