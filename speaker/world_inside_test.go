package speaker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/plan"
)

type worldInside struct{ w *world }

func (i worldInside) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	return i.w.inside.ListOf(addrs)
}

func (i worldInside) Virtuals() (map[ipvs.Key]ipvs.Settings, error) { return i.w.inside.Virtuals() }

func (i worldInside) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	return i.w.inside.Apply(ops)
}

func (i worldInside) SetPods(pods ipvs.PodSources) error {
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

// Clean checks that it is called when the virtual servers are as they will stay.
func (c worldConntrack) Clean(_ context.Context, keys map[ipvs.Key][]netip.AddrPort) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if err := c.w.change("conntrack"); err != nil {
		return err
	}
	table, _ := c.w.kernel.List()
	inside, _ := c.w.inside.List()
	for key, got := range keys {
		want := append(serving(table[key]), serving(inside[key])...)
		slices.SortFunc(want, netip.AddrPort.Compare)
		if want = slices.Compact(want); !slices.Equal(got, want) {
			c.w.wrong("conntrack is told that %v serve %v, want %v", got, key, want)
		}
		c.w.cleaned = append(c.w.cleaned, key)
	}
	return nil
}

type worldPorts struct{ w *world }

func (p worldPorts) Set(ports map[pools.ServiceKey]plan.HealthPort) map[pools.ServiceKey]error {
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

func (c worldChecks) Set(checks map[plan.Check]struct{}) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.checks = checks
}
