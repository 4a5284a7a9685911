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

type worldInternal struct{ w *world }

func (i worldInternal) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return i.w.internal.ListOf(addrs)
}

func (i worldInternal) Virtuals() (map[ipvs.Key]ipvs.Settings, error) { return i.w.internal.Virtuals() }

func (i worldInternal) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	return i.w.internal.Apply(ops)
}

func (i worldInternal) SetPods(pods ipvs.PodSources) error {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	if pods.Equal(i.w.pods) {
		return nil
	}
	if err := i.w.change("pods"); err != nil {
		return err
	}
	i.w.pods = pods
	return nil
}

type worldConntrack struct{ w *world }

// Clean checks that the virtual servers are in their final state, and that the table has the serving and the draining
// real servers of each.
func (c worldConntrack) Clean(_ context.Context, table ipvs.Table) (int, error) {
	c.w.mu.Lock()
	slow := c.w.slowClean
	c.w.mu.Unlock()
	time.Sleep(slow) // a mutex held meanwhile would stop the clock of the bubble
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if err := c.w.change("conntrack"); err != nil {
		return 0, err
	}
	c.w.cleanings = append(c.w.cleanings, time.Now())
	all, _ := c.w.kernel.List()
	internal, _ := c.w.internal.List()
	for key, vs := range table {
		want := append(serving(all[key]), serving(internal[key])...)
		slices.SortFunc(want, netip.AddrPort.Compare)
		got := slices.SortedFunc(slices.Values(serving(vs)), netip.AddrPort.Compare)
		if want = slices.Compact(want); !slices.Equal(got, want) {
			c.w.wrong("conntrack: real servers %v of %v, want %v", got, key, want)
		}
		for _, reals := range []map[netip.AddrPort]ipvs.RealServer{all[key].RealServers, internal[key].RealServers} {
			for at := range reals {
				if !has(vs.RealServers, at) {
					c.w.wrong("conntrack lacks %v, a real server of %v", at, key)
				}
			}
		}
		c.w.cleaned = append(c.w.cleaned, key)
		c.w.tracked[key] = vs
	}
	return c.w.entries, nil
}

type worldPorts struct{ w *world }

func (p worldPorts) Set(ports map[pools.ServiceKey]forwarding.HealthPort) map[pools.ServiceKey]error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.ports = ports
	errs := map[pools.ServiceKey]error{}
	for key := range ports {
		if err := p.w.failPorts[key]; err != nil {
			errs[key] = err
			delete(p.w.ports, key)
		}
	}
	return errs
}

type worldChecks struct{ w *world }

func (c worldChecks) Set(checks map[view.Check]struct{}) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.checks = checks
}
